"""Which connections are busy with network requests for longer than their equals, step by step.

Paper: VenusTrace (Jiao et al., 2025), section 3.2.2: requests are the "narrow waist" of
communication. The paper compares bandwidth with what is usual; here connections are compared that
move the same data. All edges of a ring carry equally much, so the slowest is busy throughout, and
the others wait for it (EROICA, figures 3 to 5). No times of operators are needed.

Between two rows of a connection it is known whether requests are outstanding; from a row's first
event to its last they may be. So the edges of one ring are compared by the time in which requests
*may* be outstanding: what else happens in that time is the same for all of them. Pairs move data at
different times, so equal pairs are compared by the time in which requests certainly are. A row that
is longer than a step, as where NCCL's plugin reports once a second, says the same of all its steps.
Cost: one sort of `transfers`. Cannot see: a slowness of all equals, and data that stays on a host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from stepscope.diagnose.network.outstanding import BUSY, MOST_LOOKS, latest_ends
from stepscope.diagnose.network.rates import SIZES_PER_OCTAVE
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.chance import log_tail
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.operators.requests import lost_requests
from stepscope.diagnose.thresholds import FALSE_ALARMS
from stepscope.diagnose.views.timeline import Timeline
from stepscope.window import Floats, Ints, Mask, Table, Window, numbered

RING = 3
"""Connections of a ring; two are both directions of a pair. A definition."""
LEAST_EQUALS = 4
"""Of fewer connections each is the busiest in every third step. Statistics."""
APART = 0.001
"""Part of a step by which the busiest connection exceeds the typical one before that says anything:
less is the clock. Only what goes before and after a row, or between rows, shows a difference, which
is a small part of it. Our choice."""
NEARLY = 0.1
"""Of that distance: connections that near to the busiest are as busy. Our choice."""


@dataclass(frozen=True)
class Equals:
    """Connections that carry the same data, or equally much of the same kind."""

    source: Ints
    target: Ints
    busy_ns: Floats
    """`[connection, step]`."""
    unequal: Mask
    """`[step]`: where some of them are busier than the typical one."""
    busiest: Mask
    """`[connection, step]`: those among the busiest, in unequal steps."""

    @property
    def stand_out(self) -> Mask:
        """Which are busier than their equals on the whole, beyond what these scatter."""
        total = self.busy_ns.sum(axis=1)
        sigma = max(stats.sigma(total), stats.NOISE_FLOOR * stats.median(total))
        limit = NormalDist().inv_cdf(1 - FALSE_ALARMS / len(total))
        return np.asarray(total - np.median(total) > limit * sigma)


@dataclass(frozen=True)
class Often:
    """How often each connection is among the busiest of its equals, and how often any is."""

    source: Ints
    target: Ints
    times: Ints
    at_most: Ints
    """How often the one of its equals is that is so most often."""
    stand_out: Mask
    steps: int
    """In which any connection of the job is busier than its equals."""

    @classmethod
    def of(cls, classes: Sequence[Equals]) -> Often:
        times = [one.busiest.sum(axis=1) for one in classes]
        return cls(
            np.concatenate([one.source for one in classes]),
            np.concatenate([one.target for one in classes]),
            np.concatenate(times),
            np.concatenate([np.full(len(one), one.max()) for one in times]),
            np.concatenate([one.stand_out for one in classes]),
            int(np.any([one.unequal for one in classes], axis=0).sum()),
        )  # fmt: skip

    @property
    def usual(self) -> float:
        """How often a connection is so, on average: what chance would give each of them."""
        return max(float(self.times.mean()), 0.5) / (self.steps + 1)

    @property
    def certain(self) -> Mask:
        """Which are so more often than by chance, and stand out on the whole."""
        least = math.log(FALSE_ALARMS) - math.log(len(self.times))
        chance = [log_tail(int(often), self.steps, self.usual) for often in self.times]
        return np.asarray((np.array(chance) < least) & self.stand_out)

    @property
    def log_ratios(self) -> Floats:
        """For each connection, how much likelier it is that it is the slowest of its equals, which
        is the busiest as often as any of them, than that it is so by chance."""
        own = (self.times + 0.5) / (self.steps + 1)
        slow = np.clip((self.at_most + 0.5) / (self.steps + 1), self.usual, BUSY)
        gain = own * np.log(slow / self.usual) + (1 - own) * np.log((1 - slow) / (1 - self.usual))
        return np.asarray(gain * min(self.steps, MOST_LOOKS))


def equal_connections(job: Observed) -> Iterator[Equals]:
    """The connections of a job that can be compared, class by class."""
    table = job.window.table("transfers")
    if table is None or lost_requests(job.window):
        return
    busy = _Busy.of(job, table)
    if not len(busy.source):
        return
    ring, kind = _groups(job.window, busy)
    size = np.rint(np.log2(np.maximum(busy.bytes, 1)) * SIZES_PER_OCTAVE).astype(np.int64)
    alike = numbered(ring, size)
    in_ring = (ring >= 0) & (kind >= 0) & (np.bincount(alike)[alike] >= RING)
    for number, certain in ((alike[in_ring], False), (numbered(kind, size)[~in_ring], True)):
        rows = np.flatnonzero(in_ring != certain)
        for one in range(int(number.max(initial=-1)) + 1):
            at = rows[number == one]
            if len(at) >= LEAST_EQUALS:
                yield _compared(job, busy, at, busy.certain_ns if certain else busy.possible_ns)


def _compared(job: Observed, busy: _Busy, at: Ints, busy_ns: Floats) -> Equals:
    own = busy_ns[at]
    most, typical = own.max(axis=0), np.median(own, axis=0)
    unequal = most - typical > APART * job.line.job_period_ns
    unequal[: job.line.warm_up] = False
    busiest = (own >= most - NEARLY * (most - typical)) & unequal
    return Equals(busy.source[at], busy.target[at], own, unequal, busiest)


@dataclass(frozen=True)
class _Busy:
    """For how long each connection is busy in each step."""

    source: Ints
    target: Ints
    bytes: Floats
    """In a typical step."""
    possible_ns: Floats
    """`[connection, step]`: all but the time in which no request is outstanding."""
    certain_ns: Floats

    @classmethod
    def of(cls, job: Observed, table: Table) -> _Busy:
        table = table.take(np.lexsort(
            (table.ints("start_ns"), table.ints("peer"), table.ints("rank"))))  # fmt: skip
        source, target, start, end = map(table.ints, ("rank", "peer", "start_ns", "end_ns"))
        connection = numbered(source, target)
        is_first = np.diff(connection, prepend=-1) != 0
        begins = np.flatnonzero(is_first)
        outstanding = _since_first(table.ints("posted") - table.ints("completed"), begins)
        following = np.append(start[1:], 0)
        following[begins[1:] - 1] = 0
        # several channels between two ranks have rows of the same time
        ended = latest_ends(end, is_first)
        since = np.where(is_first, start, np.maximum(start, np.roll(ended, 1)))
        waits = np.where(outstanding > 0, np.maximum(following, ended), ended)
        cells = _Cells(job.line, connection, len(begins))
        certain = cells.time_ns(ended, waits)
        moved = np.median(cells.sums(start, table.ints("bytes")), axis=1)
        possible = cells.time_ns(since, ended) + certain
        return cls(source[begins], target[begins], moved, possible, certain)


@dataclass(frozen=True)
class _Cells:
    """Sums of what rows of connections say, `[connection, step]`."""

    line: Timeline
    connection: Ints
    """Of each row."""
    count: int

    def sums(self, at_ns: Ints, values: Ints) -> Floats:
        return self._sums(self.connection, self.line.column_at(at_ns), values)

    def time_ns(self, since_ns: Ints, until_ns: Ints) -> Floats:
        """How much of each step lies within one of these times."""
        begins = np.append(self.line.begins_ns, np.iinfo(np.int64).max)
        first = np.maximum(self.line.column_at(since_ns), 0)
        steps = np.maximum(self.line.column_at(until_ns) - first, 0) + 1
        row = np.repeat(np.arange(len(since_ns)), steps)
        column = first[row] + np.arange(len(row)) - np.repeat(np.cumsum(steps) - steps, steps)
        inside = np.minimum(until_ns[row], begins[column + 1])
        inside -= np.maximum(since_ns[row], begins[column])
        return self._sums(self.connection[row], column, np.maximum(inside, 0))

    def _sums(self, connection: Ints, column: Ints, values: Ints) -> Floats:
        steps = len(self.line.steps)
        known = column >= 0
        cell = connection[known] * steps + column[known]
        summed = stats.sums(cell, values[known].astype(np.float64), self.count * steps)
        return summed.reshape(self.count, steps)


def _since_first(balance: Ints, begins: Ints) -> Ints:
    """The outstanding requests after each row, by those since its connection's first row."""
    total = np.cumsum(balance)
    before = total[begins] - balance[begins]
    return total - np.repeat(before, np.diff(np.append(begins, len(total))))


def _groups(window: Window, busy: _Busy) -> tuple[Ints, Ints]:
    """For each connection the smallest group with both ends, and the kind of it; -1: none. What
    stages send each other is no ring."""
    kinds = {kind: at for at, kind in enumerate(dict.fromkeys(one.kind for one in window.groups))}
    of_rank: dict[int, set[int]] = {}
    for at, group in enumerate(window.groups):
        for rank in group.ranks:
            of_rank.setdefault(rank, set()).add(at)
    sizes = [len(group.ranks) for group in window.groups]
    ring = np.full(len(busy.source), -1)
    for at, (one, other) in enumerate(zip(busy.source.tolist(), busy.target.tolist(), strict=True)):
        shared = of_rank.get(one, set()) & of_rank.get(other, set())
        ring[at] = min(shared, key=lambda group: (sizes[group], group), default=-1)
    kind = np.array([*(kinds[group.kind] for group in window.groups), -1])[ring]
    staged = kinds.get("pp", -2)
    return np.where(kind == staged, -1, ring), kind
