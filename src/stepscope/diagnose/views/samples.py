"""What was sampled of each rank: means of counters over a span of time, and errors of devices.

A sample covers the time since the previous sample. So a span shorter than the sampling interval is
covered by the next sample, and the first sample after a span counts in part.

Errors are ECC corrections of memory, and driver events (Xid). They are evidence for a rank that is
slow at the same time, but never blame it by themselves: many healthy GPUs correct memory errors all
the time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.views.timeline import Timeline
from stepscope.window import Floats, Ints, Mask, Table, Window, gathered, ordered

REACH = 2.0
"""A sample covers at most this many usual intervals. Our simulator."""
OF_DEVICE = ("ecc_", "xid")
"""Beginnings of the names of counters for errors of the GPU and its memory."""
SAMPLE_NS = 10**9
"""An error occurred up to a second before its sample, because processors sample once a second."""


@dataclass(frozen=True)
class Sampled:
    """Samples of one counter, each with its rank and the time that it covers."""

    ranks: int
    row: Ints
    """The rank of each sample, as a row of the grid."""
    since_ns: Ints
    until_ns: Ints
    value: Floats

    def mean(self, begin_ns: int, end_ns: int) -> Floats:
        """The mean of each rank over a span; NaN if no sample covers it."""
        inside = np.minimum(self.until_ns, end_ns) - np.maximum(self.since_ns, begin_ns)
        weight = np.maximum(inside, 0).astype(np.float64)
        whole = stats.sums(self.row, weight, self.ranks)
        total = stats.sums(self.row, weight * self.value, self.ranks)
        return np.where(whole > 0, total / np.maximum(whole, 1.0), np.nan)


def sampled(table: Table, metric: str, row: Ints, ranks: int) -> Sampled:
    """The samples of one counter.

    Args:
        row: the grid row of every sample's rank; -1 for ranks that are not on the grid.
    """
    rows = np.flatnonzero(table.strings("metric").equals(metric) & (row >= 0))
    time, owner = gathered(table.ints("ts_ns"), rows), gathered(row, rows)
    order = ordered(owner, time)  # mostly they are in this order already
    owner, time, rows = owner[order], time[order], rows[order]
    apart = np.diff(time, prepend=0)
    follows = np.diff(owner, prepend=-1) == 0
    usual = stats.median(apart[follows].astype(np.float64)) if follows.any() else 1.0
    reach = int(REACH * usual)
    since = time - np.where(follows, np.minimum(apart, reach), max(int(usual), 1))
    return Sampled(ranks, owner, since, time, gathered(table.floats("value"), rows))


def errors(window: Window, line: Timeline) -> Mask:
    """`[rank, step]`: where a rank's own device may have reported errors."""
    edges = np.zeros((len(line.ranks), len(line.steps) + 1), np.int64)
    table = window.table("hardware")
    if table is not None and len(line.steps):
        names = [one for one in table.strings("metric").values if one.startswith(OF_DEVICE)]
        rows = table.take(table.strings("metric").equals(*names) & (table.floats("value") > 0))
        row, time = line.rows(rows.ints("rank")), rows.ints("ts_ns")
        known = (row >= 0) & (line.column_at(time) >= 0)
        row, time = row[known], time[known]
        np.add.at(edges, (row, np.maximum(line.column_at(time - SAMPLE_NS), 0)), 1)
        np.add.at(edges, (row, line.column_at(time) + 1), -1)
    return np.asarray(edges.cumsum(axis=1)[:, :-1] > 0)
