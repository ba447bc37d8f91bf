"""Where the hosts of a call log waited, by what their next calls follow.

A log of calls has no ends and no waits, and some calls wait (gloo's collectives, a loss that is
read) while others return at once (DDP's buckets, a gather that was started ahead). What triggered a
call shows in its regularity. If a rank waited for an operator and then called the next one, that
call follows the operator's last member by an almost constant time. If it did not wait, it follows
the rank's own call before. And if it waited for its device, it follows itself one step before. So
for each place in a step the three spreads are compared, over all steps and ranks, and the smallest
says what the ranks did there.
Cost: one sort of the calls, and a few sorts of those that may have waited for each distance. Cannot
see: waits in jobs so regular that all three are equal, and transfers, which count as what follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.prepare.matching import kinds_and_operators
from stepscope.window import Floats, Ints, Mask, Table, Window, numbered, occurrence, rows_by

FARTHEST = 4
"""Calls after an operator's own, before the last of which ranks may wait for it: pipelined gathers
and reductions have one or two others on their way. Our choice."""
LEAST_ROWS = 10
"""Rows of a rank at one place, of which a spread is known within a third. Statistics."""
STANDARD_ERRORS = 2.0
"""By how many a spread is smaller than another. Statistics: places are many, and one of them that
is wrong moves little time."""
ERROR_OF_A_RATIO = 1.17
"""Standard error of the ratio of two median absolute deviations, times the root of the number of
rows. Statistics, for normal noise that the two share in part."""
MOST_CONTRADICTING = 0.02
"""Part of the calls at one place that may come before what they are said to wait for. Statistics:
rows that do not belong together, as for clocks (`align`)."""
CLOCKS_NS = 10**6
"""Clocks of hosts may disagree by this. Our choice, as in `align`."""
DECIDED = 0.9
"""Part of the possible waiting that must lie at places where one of the spreads is clearly smaller.
Our choice: what is left is less than a verdict costs."""


@dataclass(frozen=True)
class Calls:
    """The calls of a log, one per row of the table."""

    rank: Ints
    place: Ints
    """Which call of a step it is: ranks that call the same operators in a step share places."""
    called_ns: Ints
    last_ns: Ints
    """When the last member called the operator."""
    waitable: Mask
    """Operators that all members called, except sends, for which nobody waits."""

    @cached_property
    def order(self) -> Ints:
        """The rows by rank, then by time."""
        return np.lexsort((self.called_ns, self.rank))

    @cached_property
    def step_before(self) -> Ints:
        """The rank's call at the same place one step before; -1 for the first."""
        order = np.lexsort((self.called_ns, self.rank, self.place))
        same = (np.diff(self.place[order]) == 0) & (np.diff(self.rank[order]) == 0)
        found = np.full(len(order), -1)
        found[order[1:][same]] = order[:-1][same]
        return found


def places(window: Window, comm: Table, called_ns: Ints) -> Ints:
    """The place of each call in its step."""
    token = kinds_and_operators(window, comm)
    rank, step = comm.ints("rank"), comm.ints("step")
    nth = occurrence(numbered(rank, step, token), called_ns)
    return numbered(programs(rank, step, token, called_ns), token, nth)


def programs(rank: Ints, step: Ints, token: Ints, called_ns: Ints) -> Ints:
    """A number for each row's rank: that of all ranks which call the same in the middle step."""
    middle = np.flatnonzero(step == np.sort(step)[len(step) // 2])
    middle = middle[np.lexsort((called_ns[middle], rank[middle]))]
    begins = np.flatnonzero(np.diff(rank[middle], prepend=-1))
    said: dict[bytes, int] = {}
    number = np.full(int(rank.max(initial=0)) + 1, -1)
    for rows in np.split(middle, begins[1:]):
        number[rank[rows[0]]] = said.setdefault(token[rows].tobytes(), len(said))
    return number[rank]


@dataclass(frozen=True)
class HostWaits:
    """What the regularity of the calls says about each place in a step."""

    calls: int
    best: tuple[_Pair, ...]
    """For each place the operator that ranks most likely waited for before they called there."""

    @property
    def some_return_at_once(self) -> bool:
        """Whether some calls do not wait, for more than what is neglected."""
        neglected = _possible(self.best) * (1 - DECIDED)
        return _possible(one for one in self.best if one.follows) > neglected

    @property
    def known(self) -> bool:
        """Whether it is known for most of the possible waiting, and there is some."""
        decided = _possible(one for one in self.best if one.waits or one.follows)
        return any(one.waits for one in self.best) and decided >= _possible(self.best) * DECIDED

    @property
    def blocked_ns(self) -> Ints:
        """How long each call's rank waited for the operator."""
        blocked = np.zeros(self.calls, np.int64)
        for pair in self.best:
            if pair.waits:
                blocked[pair.rows] = np.maximum(blocked[pair.rows], pair.waited_ns)
        return blocked


def _possible(pairs: Iterable[_Pair]) -> int:
    return sum(pair.possible_ns for pair in pairs)


def host_waits(calls: Calls) -> HostWaits:
    """Looks at all calls that came after an operator for which their rank may have waited."""
    best: dict[int, _Pair] = {}
    for distance in range(1, FARTHEST + 1):
        for pair in _pairs(calls, distance):
            if pair.place not in best or pair.ratio < best[pair.place].ratio:
                best[pair.place] = pair
    return HostWaits(len(calls.rank), tuple(best.values()))


@dataclass(frozen=True)
class _Pair:
    """An operator, and a call soon after it before which ranks may have waited for it."""

    place: int
    """The place of the later call."""
    rows: Ints
    waited_ns: Ints
    ratio: float
    """Spread of the later call behind the operator's last member, over that behind the rank's own
    call before: the typical rank's."""
    against_step: float
    """The same over the spread behind itself one step before."""
    contradicting: float
    error: float

    @property
    def possible_ns(self) -> int:
        return int(self.waited_ns.sum())

    @property
    def waits(self) -> bool:
        least = 1.0 - self.error
        return max(self.ratio, self.against_step) < least and (
            self.contradicting <= MOST_CONTRADICTING
        )

    @property
    def follows(self) -> bool:
        """Whether the later call follows the rank's own call before, without any waiting."""
        return self.ratio > 1.0 + self.error


def _pairs(calls: Calls, distance: int) -> Iterator[_Pair]:
    """All pairs of places so many calls apart that ranks can have waited at."""
    order = calls.order
    most = max(len(order) - distance, 0)
    first, later = order[:most], order[distance:]
    own = order[distance - 1 : distance - 1 + most]
    before = calls.step_before[later]
    wait = calls.last_ns[first] - calls.called_ns[own]
    kept = calls.waitable[first] & (calls.rank[first] == calls.rank[later])
    kept &= (before >= 0) & (wait > 0)
    first, later, own, before, wait = (values[kept] for values in (first, later, own, before, wait))
    if not first.size:
        return
    called = calls.called_ns[later]
    pair = numbered(calls.place[first], calls.place[later])
    cell = numbered(pair, calls.rank[first])
    spreads = [_spread(cell, called - since) for since in (
        calls.last_ns[first], calls.called_ns[own], calls.called_ns[before])]  # fmt: skip
    count = np.bincount(cell)
    early = called < calls.last_ns[first] - CLOCKS_NS
    waited = np.minimum(wait, called - calls.called_ns[own])
    known = (count >= LEAST_ROWS) & (np.minimum(spreads[1], spreads[2]) > 0)
    for rows in rows_by(pair):
        cells = np.unique(cell[rows])
        cells = cells[known[cells]]
        if cells.size:
            yield _Pair(
                int(calls.place[later[rows[0]]]), first[rows], waited[rows],
                float(np.median(spreads[0][cells] / spreads[1][cells])),
                float(np.median(spreads[0][cells] / spreads[2][cells])),
                float(early[rows].mean()),
                STANDARD_ERRORS * ERROR_OF_A_RATIO / float(np.sqrt(count[cells].sum())),
            )  # fmt: skip


def _spread(cell: Ints, values: Ints) -> Floats:
    """The median absolute deviation within each cell."""
    cells = int(cell.max(initial=-1)) + 1
    centred = values - stats.medians_of(cell, values, cells)[cell]
    return stats.medians_of(cell, np.abs(centred), cells)
