"""Table `transfers`: what went over each adapter to each peer, as counted by network work requests.

One row per rank, peer and step, of what leaves its host; operators of less than one work request,
half a megabyte, are left out: the norm is eight bytes. Of a transfer that never ends nothing is
posted by whoever waits for the others; who stands still in it has filled its buffer with requests,
and none of them is completed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from stepscope.simulate.engine import NEVER
from stepscope.simulate.network import passes
from stepscope.simulate.program import TRANSFERS, Op
from stepscope.simulate.record.moment import Clocks, Moment
from stepscope.simulate.record.rows import Rows
from stepscope.simulate.world import World
from stepscope.window import Floats, Ints

SLICES = 8
REQUEST_BYTES = 512 * 1024
"""NCCL's buffer of four megabytes goes out in eight slices."""


@dataclass(frozen=True)
class _Route:
    """What the ranks of one stage send to one kind of peer, over all operators of a step."""

    slots: Ints
    places: Ints
    peers: Ints
    """Places."""
    sent: Ints
    """`[operator, rank]` in bytes."""


@dataclass(frozen=True)
class _Ways:
    """All routes together: each rank of each route is a way, whose operators are a column."""

    places: Ints
    peers: Ints
    cells: Ints
    """`[operator, way]`: of a table `[slot, stage, rank within the stage]`, cell by cell. Ways of
    fewer operators repeat their last one, by which nothing is sent."""
    sent: Ints
    requests: Ints


@dataclass
class TransferRows:
    """One row per rank and peer on another host, and step."""

    world: World
    clocks: Clocks
    rows: Rows = field(default_factory=lambda: Rows(frozenset({"nic"})))

    def add(self, moment: Moment) -> None:
        ways = self._ways
        if ways is None:
            return
        begin, end = moment.times.begin.ravel()[ways.cells], moment.times.end.ravel()[ways.cells]
        begun, ended = begin < NEVER, end < NEVER
        dead = begun & np.isin(ways.cells, self._dead(moment))
        known = np.asarray(begun.any(axis=0))
        first = np.where(begun, begin, NEVER).min(axis=0)
        last = np.maximum(np.where(ended, end, 0).max(axis=0), first)
        self.rows.add_known(
            known,
            rank=self.world.cluster.rank_of[ways.places].astype(np.int32),
            nic=self._nics[ways.places],
            peer=self.world.cluster.rank_of[ways.peers].astype(np.int32),
            start_ns=self.clocks.show(first, ways.places),
            end_ns=self.clocks.show(last, ways.places),
            bytes=np.where(ended, ways.sent, 0).sum(axis=0),
            posted=(np.where(ended, ways.requests, 0)
                    + np.where(dead, np.minimum(ways.requests, SLICES), 0)).sum(axis=0),
            completed=np.where(ended, ways.requests, 0).sum(axis=0),
        )  # fmt: skip

    def _dead(self, moment: Moment) -> Ints:
        """Cells whose transfers stand still."""
        ranks = self.world.scenario.ranks
        found = [slot * ranks + place for slot, place in moment.conditions.dead]
        return np.array(found, np.int64)

    @cached_property
    def _nics(self) -> Ints:
        """Codes of the local names, by place."""
        cluster = self.world.cluster
        places = range(self.world.scenario.ranks)
        return self.rows.codes([f"nic-{cluster.nic_of(place)}" for place in places]).astype(
            np.int64
        )

    @cached_property
    def _ways(self) -> _Ways | None:
        """None where nothing leaves a host."""
        routes = [one for stage in range(self.world.cluster.stages)
                  for one in self._routes_of(stage)]  # fmt: skip
        if not routes:
            return None
        most = max(len(one.slots) for one in routes)
        sent = np.hstack([_padded(one.sent, most, "constant") for one in routes])
        return _Ways(
            np.concatenate([one.places for one in routes]),
            np.concatenate([one.peers for one in routes]),
            np.hstack([_padded(self._cells(one), most, "edge") for one in routes]),
            sent, -(-sent // REQUEST_BYTES),
        )  # fmt: skip

    def _cells(self, route: _Route) -> Ints:
        cells: Ints = route.slots[:, None] * self.world.scenario.ranks + route.places
        return cells

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
        places = places[away]
        if not len(places):
            return None
        slots = np.array([self.world.program.slot[op.key] for op in ops])
        times = np.array([passes(op.name, self.world.members(op)) for op in ops])
        size = np.array([op.size_bytes for op in ops])
        sent = np.rint((size * times)[:, None] * share[places]).astype(np.int64)
        return _Route(slots, places, peers[places], sent)

    def _peers(self, op: Op, stage: int) -> tuple[Ints, Floats]:
        """For every place its peer on another host, and the part of a buffer that goes there."""
        ranks = self.world.scenario.ranks
        if op.partner is not None:
            shift = (op.partner[0] - stage) * self.world.cluster.per_stage
            return (np.arange(ranks) + shift) % ranks, np.ones(ranks)
        return self.world.network.counterparts(op.group)


def _padded(table: Ints, rows: int, mode: Literal["edge", "constant"]) -> Ints:
    """More rows at the end: the last one again, or zeros."""
    return np.pad(table, ((0, rows - len(table)), (0, 0)), mode=mode)
