"""Whose requests were in flight while data moved slowly: who sends over what is slow.

Papers: EROICA (2025), figures 3 to 5: of all workers in a ring with a bad adapter the one beside it
sends slowly all the time, the others with interruptions. VenusTrace (Jiao et al., 2025), section
3.2.2: requests of a path that is at fault stay in flight.
A ring carries as much over each edge. So while data moves x times slower than usual, the slowest
edge is busy all the time, and each other one an x-th of it. Looked at are the moments between two
rows of a connection in `transfers`: what was posted and has not completed is in flight then. No
clock is compared but by the offsets that `align` fitted.
Of a pair there is but one edge, which is always the slowest: that its sender is busy says that it
is one end of it, no more.
Cost: one sort of `transfers`. Cannot see: what stays on one host, and transfers between two looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.network.topology import PARTLY, Kind, PathDevice, Topology
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.operators.requests import lost_requests
from stepscope.window import Floats, Ints, Mask, Window

BUSY = 0.95
"""How likely who sends over the slowest edge has requests in flight: between the last completion
of one piece and the next post little time passes."""
MOST_LOOKS = 10.0
"""Looks at one connection that tell anything new, as `suspicion.MOST_TOLD`."""
SENDS = 0.8
"""Of what is slow in one direction only, how often it is the sending end: requests do not tell, as
`hang.SURE_BY_REQUESTS`."""
ONE_WAY: dict[Kind, float] = {"nic": 0.5, "link": 0.1, "pcie": 0.1, "switch": 0.1}
"""How often such a device is slow in one direction only. A cable's or a PCIe link's two ends agree
on one speed and width for both; an adapter has queues for each direction and connection."""
SLOWEST, FASTEST = 0.02, 0.95
"""Bounds of the part of the time that others are thought to be busy: none is idle for certain."""


@dataclass(frozen=True)
class SlowPeriods:
    """When data moved slowly among some ranks, and how many times slower, in order of time."""

    members: tuple[int, ...]
    """Of a pair of neighbours the sender and the receiver."""
    is_pair: bool
    since_ns: Ints
    until_ns: Ints
    times: Floats


@dataclass(frozen=True)
class OutstandingEvidence:
    """What looks at connections say, one entry per connection."""

    source: Ints
    target: Ints
    slowest: Floats
    """Log-likelihood ratio of "it is the slowest" to "it waits for the slowest"."""
    one_of_many: Floats
    """The same of "all are slow, each another bit"."""

    def log_ratios(self, devices: Sequence[PathDevice], topology: Topology) -> Floats:
        """Log-likelihood ratio of each carrier to one of which these connections tell nothing."""
        crosses = topology.between_leaves(self.source, self.target)
        return np.array([self._log_ratio(one, crosses) for one in devices])

    def _log_ratio(self, one: PathDevice, crosses: Mask) -> float:
        if one.kind == "fabric":
            return float(self.one_of_many.sum())
        if one.kind not in ONE_WAY:
            return 0.0
        sent, received = (np.isin(end, one.ranks) for end in (self.source, self.target))
        if one.part < 1.0:
            used = self.slowest[crosses & (sent != received if one.ranks else True)]
            return float(np.logaddexp(np.log(one.part) + used, np.log(1 - one.part)).sum())
        out, into = float(self.slowest[sent].sum()), float(self.slowest[received & ~sent].sum())
        one_way = ONE_WAY[one.kind]
        weights = np.log([1 - one_way, one_way * SENDS, one_way * (1 - SENDS)])
        return float(np.logaddexp.reduce(weights + np.array([out + into, out, into])))


@dataclass(frozen=True)
class Requests:
    """Rows of `transfers` by source, then time; a connection is source, target and adapter."""

    source: Ints
    target: Ints
    start_ns: Ints
    end_ns: Ints
    more: Ints
    """Posted less completed."""
    left: Ints
    """In flight on its connection after each row."""
    initial: Ints
    """In flight on a connection before its first row; 0 in all others."""

    @classmethod
    def of(cls, window: Window) -> Requests | None:
        """None where nobody counted requests, or where rows are lost."""
        table = window.table("transfers")
        if table is None or not table.has("peer", "posted", "completed") or lost_requests(window):
            return None
        adapter = table.strings("nic").codes if table.has("nic") else np.zeros(len(table), np.int64)
        more = table.ints("posted") - table.ints("completed")
        start, way = table.ints("start_ns"), (adapter, table.ints("peer"), table.ints("rank"))
        left, initial = _outstanding(more, np.lexsort((start, *way)), np.stack(way))
        order = np.lexsort((start, table.ints("rank")))
        columns = (table.ints("rank"), table.ints("peer"), start, table.ints("end_ns"))
        return cls(*(one[order] for one in (*columns, more, left, initial)))

    def evidence_of(self, slow: Iterable[SlowPeriods]) -> OutstandingEvidence:
        """What looks at them say about slow transfers."""
        told = [self._observations(one).evidence(one) for one in slow]
        source, target, said = (
            np.concatenate(parts) for parts in zip(_NOTHING, *told, strict=True)
        )  # fmt: skip
        paths, at = np.unique(np.stack((source, target)), axis=1, return_inverse=True)
        slowest, one_of_many, seen = (
            stats.sums(at.ravel(), column, paths.shape[1]) for column in said.T
        )
        much = MOST_LOOKS / max(float(seen.max(initial=0.0)), MOST_LOOKS)
        return OutstandingEvidence(paths[0], paths[1], slowest * much, one_of_many * much)

    def _observations(self, slow: SlowPeriods) -> _Observations:
        """At what each member sends to the others: which of several connections to them carry this
        group's data, and which another's, nobody knows."""
        senders = slow.members[:1] if slow.is_pair else slow.members
        rows = np.concatenate([self._of_rank.get(rank, _NONE) for rank in senders])
        rows = rows[np.isin(self.target[rows], slow.members)]
        begins = np.diff(self.source[rows], prepend=-1) != 0
        first = np.flatnonzero(begins)
        length = np.diff(np.append(first, rows.size))
        total = np.cumsum(self.more[rows])
        before = total[first] - self.more[rows][first] if rows.size else total
        initial = np.add.reduceat(self.initial[rows], first) if rows.size else total
        outstanding = total + np.repeat(initial - before, length) > 0
        ended, following = _latest(self.end_ns[rows], begins), self.start_ns[rows][1:]
        # between two rows, where none is open
        at = np.flatnonzero(~begins[1:] & (following >= ended[:-1]))
        targets = self._targets(rows, begins, outstanding)
        return _Observations(
            self.source[rows][at], targets[at], ended[at], following[at], outstanding[at]
        )

    def _targets(self, rows: Ints, begins: Mask, outstanding: Mask) -> Ints:
        """To whom requests fly after each row: the only target, else that of the last row after
        which its connection had any. -1: nobody knows who is not sent to."""
        target = self.target[rows]
        first = np.flatnonzero(begins)
        if not rows.size:
            return target
        low, high = np.minimum.reduceat(target, first), np.maximum.reduceat(target, first)
        only = np.repeat(low == high, np.diff(np.append(first, rows.size)))
        last = np.maximum.accumulate(np.where(self.left[rows] > 0, np.arange(rows.size), -1))
        of_several = np.where(outstanding & (last >= 0), target[last], -1)
        return np.where(only, target, of_several)

    @cached_property
    def _of_rank(self) -> dict[int, Ints]:
        """Numbers of rows by their source."""
        ranks, first = np.unique(self.source, return_index=True)
        parts = np.split(np.arange(self.source.size), first[1:])
        return dict(zip(ranks.tolist(), parts, strict=False))


@dataclass(frozen=True)
class _Observations:
    """Moments at which it is known whether requests were in flight; between two rows, a span."""

    source: Ints
    target: Ints
    since_ns: Ints
    until_ns: Ints
    outstanding: Mask

    def evidence(self, slow: SlowPeriods) -> tuple[Ints, Ints, Floats]:
        """Of those in the slow times: source, target, and what each says of either kind, and how
        much of it fell into these times: `[look, 3]`."""
        others = np.clip(1.0 / slow.times, SLOWEST, FASTEST)
        said = [
            np.where(self.outstanding, self._share(slow, np.log(busy / others)),
                     self._share(slow, np.log((1 - busy) / (1 - others))))
            for busy in (BUSY, PARTLY)
        ]  # fmt: skip
        said.append(self._share(slow, np.ones(len(others))))
        kept = said[-1] > 0
        return self.source[kept], self.target[kept], np.stack(said, axis=1)[kept]

    def _share(self, slow: SlowPeriods, value: Floats) -> Floats:
        """The mean of a value that is 0 outside of the slow times, over each look."""
        lasted = (slow.until_ns - slow.since_ns).astype(np.float64)
        before = np.concatenate(([0.0], np.cumsum(value * lasted)))

        def until(time: Ints) -> Floats:
            at = np.searchsorted(slow.since_ns, time, side="right") - 1
            inside = np.clip(time - slow.since_ns[at], 0, slow.until_ns[at] - slow.since_ns[at])
            return np.where(at < 0, 0.0, before[at] + value[at] * inside)

        ended = np.maximum(self.until_ns, self.since_ns + 1)
        return (until(ended) - until(self.since_ns)) / (ended - self.since_ns)


_NONE = np.zeros(0, np.int64)
_NOTHING = (_NONE, _NONE, np.zeros((0, 3)))


def _latest(ended_ns: Ints, begins: Mask) -> Ints:
    """The latest end of each row and those before it of its source."""
    order = np.argsort(ended_ns, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    before = np.cumsum(begins) * order.size  # a source's places are above all others' before it
    latest: Ints = ended_ns[order[np.maximum.accumulate(place + before) - before]]
    return latest


def _outstanding(more: Ints, order: Ints, way: Ints) -> tuple[Ints, Ints]:
    """How many requests are in flight after each row, and before the first of each connection.

    At the least moment of a connection it is none: what was in flight before nobody knows.
    """
    begins = np.flatnonzero((np.diff(way[:, order], axis=1, prepend=-2) != 0).any(axis=0))
    length = np.diff(np.append(begins, order.size))
    left, initial = np.zeros_like(more), np.zeros_like(more)
    if order.size:
        total = np.cumsum(more[order])
        before = total[begins] - more[order][begins]
        least = np.minimum(np.minimum.reduceat(total, begins), before)
        left[order] = total - np.repeat(least, length)
        initial[order[begins]] = before - least
    return left, initial
