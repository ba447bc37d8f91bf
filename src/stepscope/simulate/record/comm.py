"""Table `comm_ops`: every communication operator as each of its members recorded it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stepscope.simulate.engine import NEVER
from stepscope.simulate.program import TRANSFERS, Op, Program
from stepscope.simulate.record.blocked import Line
from stepscope.simulate.record.moment import Clocks, Dials, Moment, by_row
from stepscope.simulate.record.rows import Rows, Value
from stepscope.simulate.record.steps import BLOCKING
from stepscope.simulate.world import World
from stepscope.trace import NO_PEER
from stepscope.window import NULL, Ints

STATES = ("done", "started", "scheduled")


@dataclass(frozen=True)
class _Lane:
    """The operators of one kind of group on one stage, in the order in which they are issued."""

    stage: int
    ops: tuple[Op, ...]
    groups: Ints
    """For each rank within the stage, the code of its group's name."""


@dataclass(frozen=True)
class _Sheet:
    """All lanes, one below the other: what is the same in every step.

    Columns are `[operator, rank within the stage]`. A second axis of length 1 holds for all ranks.
    """

    rows: Ints
    """Rows of a table `[slot, stage]`; this column has no second axis."""
    places: Ints
    rank: NDArray[np.int32]
    group: NDArray[np.int32]
    peer: NDArray[np.int32]
    op: NDArray[np.int32]
    size: Ints
    seq: Ints
    """The sequence number in the first step."""
    per_step: Ints
    match: Ints


@dataclass
class CommRows:
    """One row per operator and member, if the member's host had issued it."""

    world: World
    clocks: Clocks
    blocking: bool
    """Whether tensor-, context- and expert-parallel operators are recorded; else only those that
    are still outstanding, which collectors always know."""
    rows: Rows = field(default_factory=lambda: Rows(frozenset({"group", "op", "state"})))

    def add(self, moment: Moment) -> None:
        self._add(moment, self._sheet)
        if not self.blocking and not moment.finished:
            self._add(moment, self._inner_sheet, in_flight=True)

    def _add(self, moment: Moment, sheet: _Sheet, in_flight: bool = False) -> None:
        times, step, dials = moment.times, moment.step, self.clocks.at(sheet.places)
        issued, begin, end = (by_row(table)[sheet.rows]
                              for table in (times.issued, times.begin, times.end))  # fmt: skip
        columns: dict[str, Value] = {
            "rank": sheet.rank, "step": np.int64(step), "group": sheet.group,
            "seq": sheet.seq + step * sheet.per_step, "op": sheet.op, "peer": sheet.peer,
            "bytes": sheet.size, "enqueue_ns": dials.show(issued),
            "start_ns": _shown(dials, begin), "end_ns": _shown(dials, end),
            "state": self._states[(begin >= NEVER).astype(np.int32) + (end >= NEVER)],
            "blocked_ns": by_row(self._blocked_ns(moment))[sheet.rows],
        }  # fmt: skip
        if self.world.scenario.parallelism.chunks > 1:
            columns["match"] = sheet.match + step * self._matches
        known = (issued < NEVER) & (end >= NEVER) if in_flight else issued < NEVER
        self.rows.add_known(known, **columns)

    def _blocked_ns(self, moment: Moment) -> Ints:
        lines = self._serial_lines if moment.conditions.serial else self._lines
        return np.stack([line.blocked_ns(moment.times, stage)
                         for stage, line in enumerate(lines)], axis=1)  # fmt: skip

    @cached_property
    def _states(self) -> NDArray[np.int32]:
        return self.rows.codes(STATES)

    @property
    def _matches(self) -> int:
        """More than the number of different operators in one step."""
        return len(self.world.ops) * self.world.cluster.stages

    @cached_property
    def _lines(self) -> list[Line]:
        return _lines_of(self.world.program)

    @cached_property
    def _serial_lines(self) -> list[Line]:
        """The lines of steps in which computation waits for every bucket of gradients."""
        return _lines_of(self.world.serial_plan.program)

    @cached_property
    def _sheet(self) -> _Sheet:
        kinds = self.world.cluster.kinds
        return self._sheet_of([one for one in kinds if self.blocking or one not in BLOCKING])

    @cached_property
    def _inner_sheet(self) -> _Sheet:
        return self._sheet_of([one for one in self.world.cluster.kinds if one in BLOCKING])

    def _sheet_of(self, kinds: Sequence[str]) -> _Sheet:
        lanes = [lane for stage in range(self.world.cluster.stages)
                 for lane in self._lanes_of(stage, kinds)]  # fmt: skip
        cluster, slot = self.world.cluster, self.world.program.slot
        ops = [(lane.stage, op) for lane in lanes for op in lane.ops]
        stages = np.array([stage for stage, _ in ops], np.int64)[:, None]
        places = stages * cluster.per_stage + np.arange(cluster.per_stage)
        groups = [np.broadcast_to(lane.groups, (len(lane.ops), cluster.per_stage))
                  for lane in lanes]  # fmt: skip
        return _Sheet(
            np.array([slot[op.key] * cluster.stages + stage for stage, op in ops], np.int64),
            places, cluster.rank_of[places].astype(np.int32),
            _below(groups, places).astype(np.int32),
            _below([self._peers(op)[None] for _, op in ops], places).astype(np.int32),
            self.rows.codes([op.name for _, op in ops])[:, None],
            _column(op.size_bytes for _, op in ops),
            _column(number for lane in lanes for number in range(len(lane.ops))),
            _column(len(lane.ops) for lane in lanes for _ in lane.ops),
            _column(self._match(op, stage) for stage, op in ops),
        )  # fmt: skip

    def _lanes_of(self, stage: int, kinds: Sequence[str]) -> Iterator[_Lane]:
        """The lanes of some kinds of groups on this stage."""
        for kind in kinds:
            ops = tuple(op for op in self.world.program.stages[stage]
                        if op.kind in TRANSFERS and op.group == kind)  # fmt: skip
            if ops:
                yield _Lane(stage, ops, self._groups(stage, kind))

    def _groups(self, stage: int, kind: str) -> Ints:
        """For each rank of a stage, the code of the name of its group."""
        cluster = self.world.cluster
        number = cluster.group_of[kind].reshape(cluster.stages, -1)[stage]
        names = {int(one): self.rows.code(f"{kind}-{one}") for one in np.unique(number)}
        return np.array([names[int(one)] for one in number])

    def _peers(self, op: Op) -> Ints:
        if op.partner is None:
            return np.full(self.world.cluster.per_stage, NO_PEER)
        peers: Ints = self.world.cluster.by_stage[op.partner[0]]
        return peers

    def _match(self, op: Op, stage: int) -> int:
        """A number shared by a send and its receive, and by all members of a collective."""
        slot, stages = self.world.program.slot, self.world.cluster.stages
        if op.partner is None:
            return slot[op.key] * stages
        if op.kind == "send":
            return slot[op.key] * stages + stage
        return slot[op.partner[1]] * stages + op.partner[0]


def _shown(dials: Dials, time: Ints) -> Ints:
    shown = dials.show(time)
    shown[time >= NEVER] = NULL
    return shown


def _below(parts: Sequence[Ints], like: Ints) -> Ints:
    """Tables one below the other; if there are none, an empty table with columns as in `like`."""
    return np.concatenate(parts) if parts else np.zeros_like(like)


def _column(values: Iterable[int]) -> Ints:
    return np.array(list(values), np.int64)[:, None]


def _lines_of(program: Program) -> list[Line]:
    return [Line.of(program, stage) for stage in range(len(program.stages))]
