"""How much slower a host is in all that it does, by the operators of a trace.

A device that runs dry shows that its host is late, but not by how much: hosts of ranks that wait
for a slow one launch ahead meanwhile, and their own pace is hidden. Without the slow host all would
be as fast as the others' hosts, not as fast as their devices. In models with short kernels, whose
hosts are the bottleneck, a rank is also last because some rank has to be.

The pace of a host is how long the same operators take on it: the weighted median, over the names of
operators, of the ratio of a rank's median call to that of its peers. Calls that block for a device
or another rank do not matter to it. Single stalls, in an operator or between two, are no pace: then
nothing is said.

Cost: a few sorts of `host_ops`. Cannot see: work between operators that is slower by the same
factor in each.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import HALF
from stepscope.window import Floats, Ints, Mask, Table

LEAST_CALLS = 3
"""Of an operator on a rank, for a median. Statistics."""
STALLED = 10.0
"""Times the usual length: a call that is a stall, or a gap as long as so many median calls.
Operators scatter by less than a factor of two. Our choice."""


def most_lost(job: Observed, suspect: Suspect) -> float | None:
    """The share of its steps that would come back if the suspect's host had its peers' pace; None
    where no trace shows it, or if single stalls make the host late."""
    table = job.window.table("host_ops")
    if table is None or job.window.table("kernels") is None:
        return None
    row, column = job.line.places(table)
    steps = np.arange(len(job.line.steps))[suspect.columns]
    peers = job.peers_of(suspect.row, None)
    here = np.isin(row, np.append(peers, suspect.row))
    calls = _Calls(row[here], np.isin(column[here], steps), table.take(here))
    usual = calls.usual(peers)
    stalls_ns = calls.stalls_ns(suspect.row, peers, usual)
    if not np.isfinite(usual).any() or stalls_ns >= HALF * suspect.excess_ns * steps.size:
        return None
    return max(1 - 1 / max(calls.pace(suspect.row, usual), 1.0), 0.0)


class _Calls:
    """The outermost operators of some hosts; those within some steps count."""

    def __init__(self, row: Ints, within: Mask, table: Table) -> None:
        self.row, self.within = row, within
        self.name = table.strings("name").codes.astype(np.int64)
        self.start_ns, self.duration_ns = table.ints("start_ns"), table.floats("duration_ns")
        self.names = int(self.name.max(initial=0)) + 1

    def of(self, row: int) -> Floats:
        """The median call of each operator on one rank; NaN where it has too few."""
        found = np.full(self.names, np.nan)
        chosen = (self.row == row) & self.within
        name, duration = self.name[chosen], self.duration_ns[chosen]
        order = np.lexsort((duration, name))
        names, first, count = np.unique(name[order], return_index=True, return_counts=True)
        often = count >= LEAST_CALLS
        found[names[often]] = duration[order][(first + count // 2)[often]]
        return found

    def usual(self, rows: Ints) -> Floats:
        """The same on the median of several ranks."""
        each = [self.of(int(row)) for row in rows]
        return stats.column_median(np.array(each)) if each else np.full(self.names, np.nan)

    def pace(self, row: int, usual: Floats) -> float:
        """How many times as long the same operators take on a rank."""
        own = self.of(row)
        known = np.flatnonzero(np.isfinite(own) & (usual > 0))
        if not known.size:
            return 1.0
        ratio = own[known] / usual[known]
        count = np.bincount(self.name[(self.row == row) & self.within], minlength=self.names)
        working = np.minimum(own, usual)[known]  # neither blocks for so long
        order = np.argsort(ratio)
        weight = np.cumsum((count[known] * working)[order])
        return float(ratio[order][np.searchsorted(weight, HALF * weight[-1])])

    def stalls_ns(self, row: int, peers: Ints, usual: Floats) -> float:
        """The time of a rank in calls that take many times as long as usual, beyond that of its
        peers in calls of the same operator, which may block; and in such gaps."""
        others = stats.column_median(np.array([self._beyond(int(one), usual) for one in peers]))
        calls = np.maximum(self._beyond(row, usual) - others, 0.0)
        median = stats.median(self.duration_ns[(self.row == row) & self.within])
        gaps = np.maximum(self._gaps(row) - STALLED * median, 0.0)
        return float(calls.sum() + gaps.sum())

    def _beyond(self, row: int, usual: Floats) -> Floats:
        """For each operator, the time in calls that take many times as long as usual."""
        chosen = (self.row == row) & self.within
        name = self.name[chosen]
        beyond = np.nan_to_num(self.duration_ns[chosen] - STALLED * usual[name])
        return stats.sums(name, np.maximum(beyond, 0.0), self.names)

    def _gaps(self, row: int) -> Floats:
        """How long a host is in no operator after each one within the steps."""
        chosen = np.flatnonzero(self.row == row)
        chosen = chosen[np.argsort(self.start_ns[chosen], kind="stable")]
        start = self.start_ns[chosen]
        reach = np.maximum.accumulate(start + self.duration_ns[chosen].astype(np.int64))
        gaps = (start[1:] - reach[:-1])[self.within[chosen][:-1]]
        return np.asarray(gaps[gaps > 0], np.float64)
