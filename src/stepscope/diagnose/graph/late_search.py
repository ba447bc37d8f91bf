"""Where a step's lateness comes from: Holmes' search, repaired, which charges each stop with its
part.

Paper: Holmes (Yao et al., 2025), section 4.3.2, algorithm 1 and appendix C. Symbols: o -> `entry`,
n -> `_holder`, po -> `_before`.
Where we differ (algorithm notes, section 3: as printed the search names a slow GPU in 17 % of
simulated jobs, repaired in all): of the members of an operator the *last arrival* is followed and
not any normal one, in collectives and point-to-point alike; on its rank the *nearest* earlier
operator that ended late, and computing is the cause only if there is none; the search starts at the
three operators of a pivot that lasted longest, and visits each operator once. And since lateness is
a length of time, it is accounted for on the way: what arises between the end of one operator and
the arrival at the next is charged to the rank, what arises in a transfer to the operator. So a GPU
that is a tenth slower is found although none of its operators is abnormal.

    late(t)  = t - begin of the step - the median of that over regular steps
    rank     += late(arrival of the last member) - late(end of the nearest late operator before)
    operator += transfer - its usual transfer

Cost: one pass over the log of each rank that is visited.
Cannot see: that of two overlapping operators of a rank the later did not wait for the earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from stepscope.diagnose.graph.abnormal import middles
from stepscope.diagnose.graph.comm_graph import CommGraph
from stepscope.diagnose.thresholds import AT_ONCE_NS
from stepscope.window import NULL, Floats, Ints, Mask

SEEDS = 3
"""The operators of a pivot where the search starts (algorithm notes, section 3). Our simulator."""
HALF = 0.5
"""An operator passes lateness on if it ended at least this part of it late. Our choice."""


@dataclass(frozen=True)
class Charges:
    """The parts of one step's lateness in ns, by the place where they arose."""

    ranks: Counter[int]
    """Rows of the grid: work between operators."""
    operators: Counter[int]
    """The first entry of each operator: transfers."""


@dataclass(frozen=True)
class LateSearch:
    """The lateness of all entries of a graph."""

    graph: CommGraph
    regular: Mask
    """`[column]`: the steps that show what is usual."""

    @cached_property
    def begin_ns(self) -> Ints:
        return self.graph.line.begins_ns[self.graph.columns]

    @cached_property
    def late_arrival_ns(self) -> Floats:
        """`[entry, column]`; NaN: unknown."""
        return self._late(self.graph.arrive_ns)

    @cached_property
    def late_end_ns(self) -> Floats:
        return self._late(self.graph.end_ns)

    @cached_property
    def transfer_excess_ns(self) -> Floats:
        return self._above(self.graph.transfer_ns)

    @cached_property
    def elapsed_excess_ns(self) -> Floats:
        return self._above(self.graph.elapsed_ns)

    @cached_property
    def late_carried_ns(self) -> Floats:
        """The same for the ends of the previous step, counted from the beginning of this one."""
        ends = np.full_like(self.graph.end_ns, NULL)
        next_to = np.flatnonzero(np.diff(self.graph.columns) == 1) + 1
        ends[:, next_to] = self.graph.end_ns[:, next_to - 1]
        return self._late(ends)

    def _late(self, time_ns: Ints) -> Floats:
        known = time_ns != NULL
        since = np.where(known, time_ns - np.where(known, self.begin_ns, 0), 0)
        return self._above(np.where(known, since, np.nan))

    def _above(self, values: Floats) -> Floats:
        """Values above the median of the regular steps."""
        return np.asarray(values - middles(values[:, self.regular])[:, None])

    def charges(self, at: int, pivots: Sequence[int]) -> Charges:
        """Searches one column of the graph, from several ranks (rows of the grid)."""
        walk = _Walk(self, at)
        for pivot in pivots:
            for seed in self._seeds(at, pivot):
                walk.back(seed)
        return Charges(walk.ranks, walk.operators)

    def _seeds(self, at: int, pivot: int) -> list[int]:
        log = self.graph.log(pivot)
        excess = np.nan_to_num(self.elapsed_excess_ns[log, at])
        longest = np.argsort(-excess, kind="stable")[:SEEDS]
        return [int(one) for one in log[longest[excess[longest] > 0]]]


@dataclass
class _Walk:
    """The search in one column, and what it has charged so far."""

    late: LateSearch
    at: int
    ranks: Counter[int] = field(default_factory=Counter)
    operators: Counter[int] = field(default_factory=Counter)
    seen: set[int] = field(default_factory=set)
    carried: set[int] = field(default_factory=set)
    """Operators of the step before that were charged already."""

    def back(self, entry: int) -> None:
        """Follows a late end back to its origin."""
        for one in self._stops(entry):
            self.seen.add(one)

    def _stops(self, entry: int) -> Iterator[int]:
        at: int | None = entry
        while at is not None and at not in self.seen:
            yield at
            holder, first = self._holder(at)
            self.operators[first] += int(np.nan_to_num(self.late.transfer_excess_ns[at, self.at]))
            at = self._charge(holder)

    def _holder(self, entry: int) -> tuple[int, int]:
        """The last arrival at an operator, if this part of it waited for that; its first entry."""
        graph, at = self.late.graph, self.at
        members = graph.members(entry)
        arrived = graph.arrive_ns[members, at]
        last = int(arrived.argmax())
        waited = graph.waited[entry, at]
        return int(members[last]) if waited else entry, int(members[0])

    def _charge(self, holder: int) -> int | None:
        """Charges the work before an arrival, and gives the late operator before it."""
        late, row = self.late, int(self.late.graph.rank[holder])
        arrived = float(np.nan_to_num(late.late_arrival_ns[holder, self.at]))
        before = self._nearest(holder, arrived, late.late_end_ns, late.graph.end_ns[:, self.at])
        if before is not None:
            self.ranks[row] += int(arrived - float(late.late_end_ns[before, self.at]))
            return before
        self.ranks[row] += int(arrived - self._carried(holder, arrived))
        return None

    def _carried(self, holder: int, arrived: float) -> float:
        """The lateness that an operator of the previous step passed on; its transfer is charged,
        too."""
        if self.at == 0:
            return 0.0
        late, ends = self.late, self.late.graph.end_ns[:, self.at - 1]
        before = self._nearest(holder, arrived, late.late_carried_ns, ends)
        if before is None:
            return 0.0
        first = int(late.graph.members(before)[0])
        if first not in self.carried:
            self.carried.add(first)
            excess = np.nan_to_num(late.transfer_excess_ns[before, self.at - 1])
            self.operators[first] += int(excess)
        return float(late.late_carried_ns[before, self.at])

    def _nearest(self, holder: int, arrived: float, late_ns: Floats, end_ns: Ints) -> int | None:
        """The operator of the same rank that ended last before, if it was late enough itself."""
        graph, at = self.late.graph, self.at
        if arrived <= 0:
            return None
        first, stop = graph.logs[graph.rank[holder]], graph.logs[graph.rank[holder] + 1]
        log = slice(int(first), int(stop))
        earlier = end_ns[log] <= graph.arrive_ns[holder, at] + AT_ONCE_NS
        earlier &= (late_ns[log, at] >= HALF * arrived) & (end_ns[log] != NULL)
        earlier[holder - log.start] = False
        if not earlier.any():
            return None
        return log.start + int(np.where(earlier, end_ns[log], NULL).argmax())
