"""Table `comm_ops`: every communication operator as each of its members saw it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from stepscope.simulate.engine import NEVER
from stepscope.simulate.program import TRANSFERS, Op, Program
from stepscope.simulate.record.blocked import Line
from stepscope.simulate.record.moment import Clocks, Moment
from stepscope.simulate.record.rows import Rows
from stepscope.simulate.record.steps import BLOCKING
from stepscope.simulate.world import World
from stepscope.trace import NO_PEER
from stepscope.window import NULL, Ints

STATES = ("done", "started", "scheduled")


@dataclass(frozen=True)
class _Lane:
    """The operators of one kind of group on one stage, in the order its hosts issue them."""

    slots: Ints
    ops: tuple[Op, ...]
    seqs: Ints
    per_step: int
    groups: Ints
    """Codes of the group's name, of each rank within the stage."""
    peers: Ints
    """`[operator, rank within the stage]`."""
    match: Ints


@dataclass
class CommRows:
    """One row per operator and member whose host had issued it."""

    world: World
    clocks: Clocks
    blocking: bool
    """Whether tensor-, context- and expert-parallel operators are kept."""
    rows: Rows = field(default_factory=lambda: Rows(frozenset({"group", "op", "state"})))

    def add(self, moment: Moment) -> None:
        lines = self._serial_lines if moment.conditions.serial else self._lines
        for stage, lanes in enumerate(self._lanes):
            blocked = lines[stage].blocked_ns(moment.times, stage)
            for lane in lanes:
                self._add(moment, stage, lane, blocked[lane.slots])

    def _add(self, moment: Moment, stage: int, lane: _Lane, blocked: Ints) -> None:
        times, at = moment.times, (lane.slots, stage)
        issued, begin, end = times.issued[at], times.begin[at], times.end[at]
        per_stage = self.world.cluster.per_stage
        places = np.arange(per_stage) + stage * per_stage
        state = (begin >= NEVER).astype(np.int32) + (end >= NEVER)
        columns = {
            "rank": self.world.cluster.rank_of[places].astype(np.int32),
            "step": np.int64(moment.step),
            "group": lane.groups.astype(np.int32),
            "seq": (lane.seqs + moment.step * lane.per_step)[:, None],
            "op": self.rows.codes([op.name for op in lane.ops])[:, None],
            "peer": lane.peers.astype(np.int32),
            "bytes": np.array([op.size_bytes for op in lane.ops])[:, None],
            "enqueue_ns": self.clocks.show(issued, places),
            "start_ns": np.where(begin < NEVER, self.clocks.show(begin, places), NULL),
            "end_ns": np.where(end < NEVER, self.clocks.show(end, places), NULL),
            "state": self.rows.codes(STATES)[state],
            "blocked_ns": blocked,
        }
        if self.world.scenario.parallelism.chunks > 1:
            columns["match"] = (lane.match + moment.step * self._matches)[:, None]
        self.rows.add_known(issued < NEVER, **columns)

    @property
    def _matches(self) -> int:
        """More than the distinct operators of one step."""
        return len(self.world.ops) * self.world.cluster.stages

    @cached_property
    def _lines(self) -> list[Line]:
        return _lines_of(self.world.program)

    @cached_property
    def _serial_lines(self) -> list[Line]:
        """Of steps in which computation waits for every bucket of gradients."""
        return _lines_of(self.world.serial_plan.program)

    @cached_property
    def _lanes(self) -> list[list[_Lane]]:
        kinds = [kind for kind in self.world.cluster.kinds if self.blocking or kind not in BLOCKING]
        return [[lane for kind in kinds if (lane := self._lane(stage, kind)) is not None]
                for stage in range(self.world.cluster.stages)]  # fmt: skip

    def _lane(self, stage: int, kind: str) -> _Lane | None:
        ops = tuple(op for op in self.world.program.stages[stage]
                    if op.kind in TRANSFERS and op.group == kind)  # fmt: skip
        if not ops:
            return None
        cluster = self.world.cluster
        number = cluster.group_of[kind].reshape(cluster.stages, -1)[stage]
        names = {int(one): self.rows.code(f"{kind}-{one}") for one in np.unique(number)}
        return _Lane(
            np.array([self.world.program.slot[op.key] for op in ops]), ops, np.arange(len(ops)),
            len(ops), np.array([names[int(one)] for one in number]),
            np.stack([self._peers(op) for op in ops]),
            np.array([self._match(op, stage) for op in ops]),
        )  # fmt: skip

    def _peers(self, op: Op) -> Ints:
        if op.partner is None:
            return np.full(self.world.cluster.per_stage, NO_PEER)
        peers: Ints = self.world.cluster.by_stage[op.partner[0]]
        return peers

    def _match(self, op: Op, stage: int) -> int:
        """The same for a send and its receive, and for all members of a collective."""
        slot, stages = self.world.program.slot, self.world.cluster.stages
        if op.partner is None:
            return slot[op.key] * stages
        if op.kind == "send":
            return slot[op.key] * stages + stage
        return slot[op.partner[1]] * stages + op.partner[0]


def _lines_of(program: Program) -> list[Line]:
    return [Line.of(program, stage) for stage in range(len(program.stages))]
