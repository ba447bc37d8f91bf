"""Table `transfers`: what each adapter sent to each peer, counted in network work requests.

Collectors read the counters of every connection once a second by their own clock. Each row is one
rank, peer and second of a step in which anything happened, from the first event in it to the last.
Only traffic that leaves the host is recorded. Operators of less than one work request (half a
megabyte) are left out, such as the norm of eight bytes.

When a transfer begins, each sender fills its buffer with requests. The others are posted as these
complete; here all of them are posted when the last completes. A sender whose edge is faster than
the slowest of its group has outstanding requests for a proportionally smaller part of the time;
here that part is contiguous, at any moment of the transfer. If one member stalls, only its own
requests stay outstanding: the others have nothing to forward until it moves. A rank that still
waits for another member to arrive posts nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

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
"""NCCL's buffer of four megabytes is sent in eight slices."""


TOGETHER = 1 << 17
"""Lines that are processed at once: many small arrays cost calls, a few large ones cost memory."""


@dataclass(frozen=True)
class _Piece:
    """What the ranks of one stage send to one kind of peer: some lines, one below the other."""

    kind: str
    """The kind of group."""
    stage: int
    lines: slice
    pairs: slice
    shape: tuple[int, int]
    """The shape of the lines: `[operator, rank]`."""


@dataclass(frozen=True)
class _Routes:
    """What ranks send to other hosts in a step: one line per operator and rank, and the pair of
    ranks to which each line belongs."""

    places: Ints
    """The sender of each pair."""
    peers: Ints
    """The receiver of each pair."""
    pair: Ints
    """The pair of each line."""
    at: tuple[Ints, Ints, Ints]
    """The slot, stage and rank within the stage of each line."""
    sent: Ints
    """Bytes of each line."""
    requests: Ints
    pieces: tuple[_Piece, ...]


@dataclass
class TransferRows:
    """One row per rank and peer on another host, step and second."""

    world: World
    clocks: Clocks
    rows: Rows = field(default_factory=lambda: Rows(frozenset({"nic"})))

    def add(self, moment: Moment) -> None:
        nics = self._nics_in(moment)
        for routes in self._routes:
            mark = self._standing(routes, moment)
            occupied = self._occupied(routes, moment)
            self._add(routes, _events(routes, moment, mark, occupied), nics)

    def _add(self, routes: _Routes, events: _Events, nics: Ints) -> None:
        phase = self._phase[routes.places]
        at, first, last, (posted, completed, sent) = _by_second(events, routes.pair, phase)
        places, peers = routes.places[at], routes.peers[at]
        self.rows.add(
            rank=self.world.cluster.rank_of[places].astype(np.int32), nic=nics[places],
            peer=self.world.cluster.rank_of[peers].astype(np.int32),
            start_ns=self.clocks.show(first, places), end_ns=self.clocks.show(last, places),
            bytes=sent, posted=posted, completed=completed,
        )  # fmt: skip

    def _standing(self, routes: _Routes, moment: Moment) -> Marks | None:
        """For each line: whether its sender has stalled, is held up by another, or moves (0)."""
        if not moment.conditions.standing:
            return None
        mark = np.zeros(len(routes.pair), np.int8)
        places = routes.places[routes.pair]
        for slot, place in moment.conditions.standing:
            held = self.world.together(self.world.ops[slot], place)
            at = routes.at[0] == slot
            mark[at & np.isin(places, held)] = HELD
            mark[at & (places == place)] = STANDS
        return mark

    def _occupied(self, routes: _Routes, moment: Moment) -> _Occupied | None:
        """When within each transfer the ranks have outstanding requests; None: all the time."""
        kinds = {piece.kind for piece in routes.pieces} - {"pp"}
        parts = {
            kind: self.world.network.occupied(kind, moment.conditions.slower) for kind in kinds
        }
        lasting, since = np.ones(len(routes.pair)), np.zeros(len(routes.pair))
        for piece in routes.pieces:
            if piece.kind in parts:
                part = parts[piece.kind][routes.places[piece.pairs]]
                if (part < 1.0).any():
                    source = f"requests {piece.kind} {piece.stage}"
                    drawn = self.world.random.source(source, moment.step).random(piece.shape)
                    lasting[piece.lines] = np.broadcast_to(part, piece.shape).ravel()
                    since[piece.lines] = (drawn * (1.0 - part)).ravel()
        return _Occupied(lasting, since) if (lasting < 1.0).any() else None

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
        """Codes of the adapters' local names, by place."""
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
    def _routes(self) -> list[_Routes]:
        """All routes, in as few parts as `TOGETHER` allows."""
        found = [one for stage in range(self.world.cluster.stages)
                 for one in self._by_peer(stage)]  # fmt: skip
        lines = np.cumsum([one.lines for one in found])
        parts = itertools.groupby(
            zip(found, lines, strict=True), key=lambda one: int(one[1]) // TOGETHER
        )
        return [_joined([one for one, _ in some]) for _, some in parts]

    def _by_peer(self, stage: int) -> Iterator[_Route]:
        """One for the next stage, one for the previous stage, and one for each kind of group."""
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
        return _Route(stage, ops[0].group, slots, places[away], peers[places[away]],
                      np.flatnonzero(away), sent)  # fmt: skip

    def _peers(self, op: Op, stage: int) -> tuple[Ints, Floats]:
        """For every place its peer on another host, and the share of the buffer it sends there."""
        ranks = self.world.scenario.ranks
        if op.partner is not None:
            shift = (op.partner[0] - stage) * self.world.cluster.per_stage
            return (np.arange(ranks) + shift) % ranks, np.ones(ranks)
        return self.world.network.counterparts(op.group)


@dataclass(frozen=True)
class _Route:
    """What the ranks of one stage send to one kind of peer, over all operators of a step."""

    stage: int
    kind: str
    """The kind of group."""
    slots: Ints
    places: Ints
    peers: Ints
    columns: Ints
    """The indices of the places among the ranks of their stage."""
    sent: Ints
    """`[operator, rank]` in bytes."""

    @property
    def lines(self) -> int:
        return self.sent.size


def _joined(found: Sequence[_Route]) -> _Routes:
    """The routes, one below the other."""
    pairs = np.cumsum([0, *(len(one.places) for one in found)]).tolist()
    lines = np.cumsum([0, *(one.lines for one in found)]).tolist()
    sent = np.concatenate([one.sent.ravel() for one in found])
    return _Routes(
        places=np.concatenate([one.places for one in found]),
        peers=np.concatenate([one.peers for one in found]),
        pair=np.concatenate([np.tile(np.arange(*bounds), len(one.slots))
                             for one, bounds in zip(found, pairwise(pairs), strict=True)]),
        at=(np.concatenate([np.repeat(one.slots, len(one.columns)) for one in found]),
            np.concatenate([np.full(one.lines, one.stage) for one in found]),
            np.concatenate([np.tile(one.columns, len(one.slots)) for one in found])),
        sent=sent,
        requests=-(-sent // REQUEST_BYTES),
        pieces=tuple(_Piece(one.kind, one.stage, slice(*of_lines), slice(*of_pairs),
                            one.sent.shape)
                     for one, of_lines, of_pairs
                     in zip(found, pairwise(lines), pairwise(pairs), strict=True)),
    )  # fmt: skip


@dataclass(frozen=True)
class _Occupied:
    """The part of each line's transfer in which requests are outstanding, as fractions of it."""

    lasting: Floats
    since: Floats


@dataclass(frozen=True)
class _Events:
    """When the requests of each line are posted and completed; NEVER: they are not."""

    posted: Ints
    """When its first requests are posted."""
    early: Ints
    """The number of first requests."""
    ended: Ints
    """When the other requests are posted, and all are completed."""
    requests: Ints
    sent: Ints


def _events(
    routes: _Routes, moment: Moment, mark: Marks | None, occupied: _Occupied | None
) -> _Events:
    ended, lasting = moment.times.end[routes.at], moment.costs.lasting[routes.at]
    done = ended < NEVER
    posted = np.where(done, ended - lasting, NEVER)
    if occupied is not None:
        moves = done if mark is None else done & (mark == 0)
        posted = np.where(moves, posted + (occupied.since * lasting).astype(np.int64), posted)
        last = posted + (occupied.lasting * lasting).astype(np.int64)
        ended = np.where(moves, np.minimum(last, ended), ended)
    if mark is not None:
        posted = np.where(mark == HELD, ended, posted)
        begin = moment.times.begin[routes.at]
        posted = np.where((mark == STANDS) & ~done, begin, posted)
    return _Events(posted, np.minimum(routes.requests, SLICES), ended, routes.requests, routes.sent)


def _by_second(events: _Events, pair: Ints, phase: Ints) -> tuple[Ints, Ints, Ints, list[Ints]]:
    """Rows, each of a pair and a second: the pair, the times of the first and the last event, and
    the numbers of posted requests, completed requests and bytes."""
    begun, done = events.posted < NEVER, events.ended < NEVER
    second = [(time + phase[pair]) // PERIOD_NS for time in (events.posted, events.ended)]
    known = np.concatenate((second[0][begun], second[1][done]))
    if not len(known):
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, nothing, [nothing] * 3
    since, width = int(known.min()), int(known.max() - known.min()) + 1
    cell = [((one - since) + pair * width)[mask]
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
    used = np.flatnonzero(first < NEVER)
    return used // width, first[used], last[used], [values[used] for values in counts]


def _sum(cell: Ints, values: Ints, size: int) -> Ints:
    """The sum is exact: a second's bytes are far below 2^53."""
    return np.bincount(cell, weights=values, minlength=size).astype(np.int64)
