"""Table `transfers`: what went over each adapter to each peer, as counted by network work requests.

Collectors read the counters of every connection once a second by their own clock: one row per rank,
peer and second of a step in which anything happened, from the first event in it to the last. Only
what leaves its host is there; operators of less than one work request, half a megabyte, are left
out: the norm is eight bytes.

When a transfer begins, each sender fills its buffer with requests; the others are posted as these
complete, here all of them when the last does. Who sends over an edge that is faster than the
slowest of its group has requests in flight for as much less of the time, here in one piece at any
moment of the transfer. Where one member stands still, only its own stay in flight: the others have
nothing to pass on until it moves. Who still waits for a member to come posts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stepscope.simulate.engine import NEVER
from stepscope.simulate.network import passes
from stepscope.simulate.program import TRANSFERS, Op
from stepscope.simulate.record.hardware import PERIOD_NS
from stepscope.simulate.record.moment import Clocks, Moment
from stepscope.simulate.record.rows import Rows
from stepscope.simulate.world import World
from stepscope.window import Floats, Ints

Marks = NDArray[np.int8]
STANDS, HELD = 1, -1
SLICES = 8
REQUEST_BYTES = 512 * 1024
"""NCCL's buffer of four megabytes goes out in eight slices."""


@dataclass(frozen=True)
class _Route:
    """What the ranks of one stage send to one kind of peer, over all operators of a step."""

    stage: int
    kind: str
    """Of the group."""
    slots: Ints
    places: Ints
    peers: Ints
    """Places."""
    columns: Ints | slice
    """Where the places are among the ranks of their stage."""
    sent: Ints
    """`[operator, rank]` in bytes."""
    requests: Ints

    def of(self, table: Ints) -> Ints:
        """`[operator, rank]` of a table `[slot, stage, rank within the stage]`."""
        rows: Ints = table[self.slots, self.stage]
        return rows[:, self.columns]


@dataclass
class TransferRows:
    """One row per rank and peer on another host, step and second."""

    world: World
    clocks: Clocks
    rows: Rows = field(default_factory=lambda: Rows(frozenset({"nic"})))

    def add(self, moment: Moment) -> None:
        nics = self._nics_in(moment)
        for route in self._routes:
            mark = self._standing(route, moment)
            occupied = self._occupied(route, moment)
            self._add(route, _events(route, moment, mark, occupied), nics)

    def _add(self, route: _Route, events: _Events, nics: Ints) -> None:
        phase = self._phase[route.places]
        at, first, last, (posted, completed, sent) = _by_second(events, phase)
        places, peers = route.places[at], route.peers[at]
        self.rows.add(
            rank=self.world.cluster.rank_of[places].astype(np.int32), nic=nics[places],
            peer=self.world.cluster.rank_of[peers].astype(np.int32),
            start_ns=self.clocks.show(first, places), end_ns=self.clocks.show(last, places),
            bytes=sent, posted=posted, completed=completed,
        )  # fmt: skip

    def _standing(self, route: _Route, moment: Moment) -> Marks:
        """`[operator, rank]`: who stands still itself, who is held up by that, 0 who moves."""
        mark = np.zeros(route.sent.shape, np.int8)
        for slot, place in moment.conditions.standing:
            held = self.world.together(self.world.ops[slot], place)
            at = (route.slots == slot)[:, None]
            mark[at & np.isin(route.places, held)] = HELD
            mark[at & (route.places == place)] = STANDS
        return mark

    def _occupied(self, route: _Route, moment: Moment) -> _Occupied | None:
        """When within each transfer the ranks have requests in flight; None: all the time."""
        if route.kind == "pp":
            return None
        part = self.world.network.occupied(route.kind, moment.conditions.slower)[route.places]
        if (part >= 1.0).all():
            return None
        source = self.world.random.source(f"requests {route.kind} {route.stage}", moment.step)
        return _Occupied(part, source.random(route.sent.shape) * (1.0 - part))

    def _nics_in(self, moment: Moment) -> Ints:
        """Codes of the adapters that places use in a step."""
        nics = self._nics
        for places, numbers in moment.conditions.detours:
            names = [f"nic-{number}" for number in numbers]
            nics = nics.copy()
            nics[places] = self.rows.codes(names)
        return nics

    @cached_property
    def _nics(self) -> Ints:
        """Codes of the local names, by place."""
        cluster = self.world.cluster
        places = range(self.world.scenario.ranks)
        return self.rows.codes([f"nic-{cluster.nic_of(place)}" for place in places]).astype(
            np.int64
        )

    @cached_property
    def _phase(self) -> Ints:
        """How far into a second each clock is when the job begins."""
        zero = self.clocks.at(np.arange(self.world.scenario.ranks)).zero_ns
        return zero % PERIOD_NS

    @cached_property
    def _routes(self) -> list[_Route]:
        return [one for stage in range(self.world.cluster.stages)
                for one in self._routes_of(stage)]  # fmt: skip

    def _routes_of(self, stage: int) -> Iterator[_Route]:
        """One for the next stage, one for the stage before, one for each kind of group."""
        by_peer: dict[str, list[Op]] = {}
        for op in self.world.program.stages[stage]:
            if op.kind in TRANSFERS and op.kind != "recv" and op.size_bytes >= REQUEST_BYTES:
                towards = op.group if op.partner is None else f"stage {op.partner[0]}"
                by_peer.setdefault(towards, []).append(op)
        for ops in by_peer.values():
            route = self._route(stage, ops)
            if route is not None:
                yield route

    def _route(self, stage: int, ops: list[Op]) -> _Route | None:
        cluster = self.world.cluster
        places = np.arange(cluster.per_stage) + stage * cluster.per_stage
        peers, share = self._peers(ops[0], stage)
        away = cluster.host_of_place[peers[places]] != cluster.host_of_place[places]
        if not away.any():
            return None
        slots = np.array([self.world.program.slot[op.key] for op in ops])
        times = np.array([passes(op.name, self.world.members(op)) for op in ops])
        size = np.array([op.size_bytes for op in ops])
        sent = np.rint((size * times)[:, None] * share[places[away]]).astype(np.int64)
        columns = slice(None) if away.all() else np.flatnonzero(away)
        kind = ops[0].group
        return _Route(stage, kind, slots, places[away], peers[places[away]], columns, sent,
                      -(-sent // REQUEST_BYTES))  # fmt: skip

    def _peers(self, op: Op, stage: int) -> tuple[Ints, Floats]:
        """For every place its peer on another host, and the part of a buffer that goes there."""
        ranks = self.world.scenario.ranks
        if op.partner is not None:
            shift = (op.partner[0] - stage) * self.world.cluster.per_stage
            return (np.arange(ranks) + shift) % ranks, np.ones(ranks)
        return self.world.network.counterparts(op.group)


@dataclass(frozen=True)
class _Occupied:
    """The piece of each transfer in which requests are in flight, as parts of it."""

    lasting: Floats
    """`[rank]`"""
    since: Floats
    """`[operator, rank]`"""


@dataclass(frozen=True)
class _Events:
    """What happened to the requests of a route, each `[operator, rank]`; NEVER: it did not."""

    posted: Ints
    """When its first requests are."""
    early: Ints
    """How many these are."""
    ended: Ints
    """When the others are posted, and all completed."""
    requests: Ints
    sent: Ints


def _events(route: _Route, moment: Moment, mark: Marks, occupied: _Occupied | None) -> _Events:
    begin, ended = route.of(moment.times.begin), route.of(moment.times.end)
    done, lasting = ended < NEVER, route.of(moment.costs.lasting)
    posted = np.where(done, ended - lasting, NEVER)
    if occupied is not None:
        moves = done & (mark == 0)
        posted = np.where(moves, posted + (occupied.since * lasting).astype(np.int64), posted)
        last = posted + (occupied.lasting * lasting).astype(np.int64)
        ended = np.where(moves, np.minimum(last, ended), ended)
    if mark.any():
        posted = np.where(mark == HELD, ended, posted)
        posted = np.where((mark == STANDS) & ~done, begin, posted)
    return _Events(posted, np.minimum(route.requests, SLICES), ended, route.requests, route.sent)


def _by_second(events: _Events, phase: Ints) -> tuple[Ints, Ints, Ints, list[Ints]]:
    """Rows, each of a rank and a second: which rank, the first and the last event, and how many
    requests were posted, how many completed, and their bytes."""
    begun, done = events.posted < NEVER, events.ended < NEVER
    ranks = np.broadcast_to(np.arange(len(phase)), begun.shape)
    second = [(events.posted + phase) // PERIOD_NS, (events.ended + phase) // PERIOD_NS]
    known = np.concatenate((second[0][begun], second[1][done]))
    if not len(known):
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, nothing, [nothing] * 3
    since, width = int(known.min()), int(known.max() - known.min()) + 1
    cell = [((one - since) + ranks * width)[mask]
            for one, mask in zip(second, (begun, done), strict=True)]  # fmt: skip
    size = len(phase) * width
    first, last = np.full(size, NEVER), np.zeros(size, np.int64)
    for at, time in ((cell[0], events.posted[begun]), (cell[1], events.ended[done])):
        np.minimum.at(first, at, time)
        np.maximum.at(last, at, time)
    posted = _sum(cell[0], events.early[begun], size)
    posted += _sum(cell[1], (events.requests - events.early)[done], size)
    counts = [posted, _sum(cell[1], events.requests[done], size),
              _sum(cell[1], events.sent[done], size)]  # fmt: skip
    seen = np.flatnonzero(first < NEVER)
    return seen // width, first[seen], last[seen], [one[seen] for one in counts]


def _sum(cell: Ints, values: Ints, size: int) -> Ints:
    """Exact: a second's bytes are far below 2^53."""
    return np.bincount(cell, weights=values, minlength=size).astype(np.int64)
