"""Means of sampled counters over a span of time, for each rank.

A sample covers the time since the previous sample. So a span shorter than the sampling interval is
covered by the next sample, and the first sample after a span counts in part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.window import Floats, Ints, Table, ordered

REACH = 2.0
"""A sample covers at most this many usual intervals. Our simulator."""


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
    time = table.ints("ts_ns")[rows]
    order = ordered(row[rows], time)  # mostly they are in this order already
    owner, time = row[rows][order], time[order]
    apart = np.diff(time, prepend=0)
    follows = np.diff(owner, prepend=-1) == 0
    usual = stats.median(apart[follows].astype(np.float64)) if follows.any() else 1.0
    reach = int(REACH * usual)
    since = time - np.where(follows, np.minimum(apart, reach), max(int(usual), 1))
    return Sampled(ranks, owner, since, time, table.floats("value")[rows][order])
