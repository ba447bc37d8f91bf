"""Means of sampled counters over a span of time, rank by rank.

A sample tells of the time since the one before it: of a span shorter than the interval between
samples the next one tells, and of the first sample after a span only a part counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.window import Floats, Ints, Table

REACH = 2.0
"""Times the usual interval: a sample tells of no more, however long ago the one before it was."""


@dataclass(frozen=True)
class Sampled:
    """One counter: whose each sample is, and the time that it tells of."""

    ranks: int
    row: Ints
    """Of the grid of ranks."""
    since_ns: Ints
    until_ns: Ints
    value: Floats

    def mean(self, begin_ns: int, end_ns: int) -> Floats:
        """Of each rank over a span; NaN where no sample tells of it."""
        inside = np.minimum(self.until_ns, end_ns) - np.maximum(self.since_ns, begin_ns)
        weight = np.maximum(inside, 0).astype(np.float64)
        whole = stats.sums(self.row, weight, self.ranks)
        total = stats.sums(self.row, weight * self.value, self.ranks)
        return np.where(whole > 0, total / np.maximum(whole, 1.0), np.nan)


def sampled(table: Table, metric: str, row: Ints, ranks: int) -> Sampled:
    """The samples of one counter.

    Args:
        row: of every sample of the table its rank's row on the grid, -1 for ranks that have none.
    """
    rows = np.flatnonzero(table.strings("metric").equals(metric) & (row >= 0))
    time = table.ints("ts_ns")[rows]
    order = np.lexsort((time, row[rows]))
    mine, time = row[rows][order], time[order]
    apart = np.diff(time, prepend=0)
    follows = np.diff(mine, prepend=-1) == 0
    usual = stats.median(apart[follows].astype(np.float64)) if follows.any() else 1.0
    reach = int(REACH * usual)
    since = time - np.where(follows, np.minimum(apart, reach), max(int(usual), 1))
    return Sampled(ranks, mine, since, time, table.floats("value")[rows][order])
