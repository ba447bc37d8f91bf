"""Outstanding network requests while data moved slowly: they show which connection is the slow one.

Papers: EROICA (2025), figures 3 to 5: in a ring with a bad NIC, the worker next to it sends slowly
all the time, the others with interruptions. VenusTrace (Jiao et al., 2025), section 3.2.2: requests
on a faulty path stay outstanding. A ring moves the same amount of data over each edge. So if data
moves x times slower than usual, the slowest edge is busy all the time, and each other edge 1/x of
the time. We look at the times between two rows of a connection in `transfers`: a request that was
posted and has not completed is then outstanding. Clocks are compared only after `align` has
corrected their offsets. A pair has a single edge, which is always the slowest one. That its sender
is busy only shows that it is one end of this edge.
Cost: one sort of `transfers`. Cannot see: data that stays on one host, and transfers between two
observations.
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
"""Probability that the sender over the slowest edge has outstanding requests: little time passes
between the last completion of one chunk and the next post. Our simulator."""
MOST_LOOKS = 10.0
"""More observations of one connection add no information, as in `likelihood.MOST_STEPS`. Our
simulator."""
SENDS = 0.8
"""Probability that a device that is slow in one direction is at the sending end: requests do not
show which end it is, as in `hang.REQUESTS_CONFIDENCE`. Our simulator."""
ONE_WAY: dict[Kind, float] = {"nic": 0.5, "link": 0.1, "pcie": 0.1, "switch": 0.1}
"""Probability that a slow device is slow in one direction only. The two ends of a cable or PCIe
link negotiate one speed and width for both directions; a NIC has queues for each direction and
connection. Our simulator."""
SLOWEST, FASTEST = 0.02, 0.95
"""Bounds of the expected busy time of the other edges, so that none is certain. Our simulator."""


@dataclass(frozen=True)
class SlowPeriods:
    """Periods in which data moved slowly among some ranks, in order of time."""

    members: tuple[int, ...]
    """For a pair of neighbours, the sender and the receiver."""
    is_pair: bool
    since_ns: Ints
    until_ns: Ints
    times: Floats
    """How many times slower."""


@dataclass(frozen=True)
class OutstandingEvidence:
    """Evidence from observed connections, one entry per connection."""

    source: Ints
    target: Ints
    slowest: Floats
    """Log-likelihood ratio of "it is the slowest" to "it waits for the slowest"."""
    one_of_many: Floats
    """The same for "all connections are slow, each at different times"."""

    def log_ratios(self, devices: Sequence[PathDevice], topology: Topology) -> Floats:
        """Log-likelihood ratio of each device to a device for which there is no such evidence."""
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
    """Rows of `transfers` by source, then time. A connection is source, target and NIC."""

    source: Ints
    target: Ints
    start_ns: Ints
    end_ns: Ints
    balance: Ints
    """Posted less completed."""
    after: Ints
    """Outstanding on its connection after each row."""
    initial: Ints
    """Outstanding on its connection before the connection's first row; 0 in all other rows."""

    @classmethod
    def of(cls, window: Window) -> Requests | None:
        """The requests of a window; None if they were not recorded, or if rows were lost."""
        table = window.table("transfers")
        if table is None or not table.has("peer", "posted", "completed") or lost_requests(window):
            return None
        nic = table.strings("nic").codes if table.has("nic") else np.zeros(len(table), np.int64)
        balance = table.ints("posted") - table.ints("completed")
        start, connection = table.ints("start_ns"), (nic, table.ints("peer"), table.ints("rank"))
        after, initial = _outstanding(
            balance, np.lexsort((start, *connection)), np.stack(connection)
        )
        order = np.lexsort((start, table.ints("rank")))
        columns = (table.ints("rank"), table.ints("peer"), start, table.ints("end_ns"))
        return cls(*(one[order] for one in (*columns, balance, after, initial)))

    def evidence_of(self, slow: Iterable[SlowPeriods]) -> OutstandingEvidence:
        """What the requests say about slow transfers."""
        parts = [self._observations(one).evidence(one) for one in slow]
        source, target, ratios = (
            np.concatenate(columns) for columns in zip(_NOTHING, *parts, strict=True)
        )  # fmt: skip
        pairs, at = np.unique(np.stack((source, target)), axis=1, return_inverse=True)
        slowest, one_of_many, number = (
            stats.sums(at.ravel(), column, pairs.shape[1]) for column in ratios.T
        )
        weight = MOST_LOOKS / max(float(number.max(initial=0.0)), MOST_LOOKS)
        return OutstandingEvidence(pairs[0], pairs[1], slowest * weight, one_of_many * weight)

    def _observations(self, slow: SlowPeriods) -> _Observations:
        """Observations of what each member sends to the others, over all its connections to them:
        it is unknown which of these carry the data of this group."""
        senders = slow.members[:1] if slow.is_pair else slow.members
        rows = np.concatenate([self._of_rank.get(rank, _NONE) for rank in senders])
        rows = rows[np.isin(self.target[rows], slow.members)]
        begins = np.diff(self.source[rows], prepend=-1) != 0
        first = np.flatnonzero(begins)
        length = np.diff(np.append(first, rows.size))
        total = np.cumsum(self.balance[rows])
        before = total[first] - self.balance[rows][first] if rows.size else total
        initial = np.add.reduceat(self.initial[rows], first) if rows.size else total
        outstanding = total + np.repeat(initial - before, length) > 0
        ended, following = latest_ends(self.end_ns[rows], begins), self.start_ns[rows][1:]
        # between two rows, while no row is in progress
        at = np.flatnonzero(~begins[1:] & (following >= ended[:-1]))
        targets = self._targets(rows, begins, outstanding)
        return _Observations(
            self.source[rows][at], targets[at], ended[at], following[at], outstanding[at]
        )

    def _targets(self, rows: Ints, begins: Mask, outstanding: Mask) -> Ints:
        """The target of the outstanding requests after each row: the only target, else the target
        of the last row after which its connection had any. -1: unknown, or none outstanding."""
        target = self.target[rows]
        first = np.flatnonzero(begins)
        if not rows.size:
            return target
        low, high = np.minimum.reduceat(target, first), np.maximum.reduceat(target, first)
        only = np.repeat(low == high, np.diff(np.append(first, rows.size)))
        last = np.maximum.accumulate(np.where(self.after[rows] > 0, np.arange(rows.size), -1))
        of_several = np.where(outstanding & (last >= 0), target[last], -1)
        return np.where(only, target, of_several)

    @cached_property
    def _of_rank(self) -> dict[int, Ints]:
        """Row numbers by source rank."""
        ranks, first = np.unique(self.source, return_index=True)
        parts = np.split(np.arange(self.source.size), first[1:])
        return dict(zip(ranks.tolist(), parts, strict=False))


@dataclass(frozen=True)
class _Observations:
    """Spans between two rows, in which it is known whether requests were outstanding."""

    source: Ints
    target: Ints
    since_ns: Ints
    until_ns: Ints
    outstanding: Mask

    def evidence(self, slow: SlowPeriods) -> tuple[Ints, Ints, Floats]:
        """Source and target of the observations in the slow periods, and `[observation, 3]`: the
        two log-likelihood ratios and the share of the observation in these periods."""
        others = np.clip(1.0 / slow.times, SLOWEST, FASTEST)
        columns = [
            np.where(self.outstanding, self._share(slow, np.log(busy / others)),
                     self._share(slow, np.log((1 - busy) / (1 - others))))
            for busy in (BUSY, PARTLY)
        ]  # fmt: skip
        columns.append(self._share(slow, np.ones(len(others))))
        kept = columns[-1] > 0
        return self.source[kept], self.target[kept], np.stack(columns, axis=1)[kept]

    def _share(self, slow: SlowPeriods, value: Floats) -> Floats:
        """The mean over each observation of a value that is 0 outside of the slow periods."""
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


def latest_ends(ended_ns: Ints, begins: Mask) -> Ints:
    """The latest end of each row and of those before it with the same source."""
    order = np.argsort(ended_ns, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    before = np.cumsum(begins) * order.size  # above all places of earlier sources
    return np.asarray(ended_ns[order[np.maximum.accumulate(place + before) - before]])


def _outstanding(balance: Ints, order: Ints, connection: Ints) -> tuple[Ints, Ints]:
    """How many requests are outstanding after each row, and before the first of each connection.

    The minimum over a connection is taken as zero, because the initial number is unknown.
    """
    begins = np.flatnonzero((np.diff(connection[:, order], axis=1, prepend=-2) != 0).any(axis=0))
    length = np.diff(np.append(begins, order.size))
    after, initial = np.zeros_like(balance), np.zeros_like(balance)
    if order.size:
        total = np.cumsum(balance[order])
        before = total[begins] - balance[order][begins]
        least = np.minimum(np.minimum.reduceat(total, begins), before)
        after[order] = total - np.repeat(least, length)
        initial[order[begins]] = before - least
    return after, initial
