"""The order in which a program is computed: every operation after its dependencies.

An operation depends on the previous one on its stream, on those it names, on the last wait of its
host and, if other operations end together with it, on what these depend on. The order depends on
the program alone, so it is computed once per job.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from stepscope.simulate.program import ACROSS_STAGES, Op, Program


class Member(NamedTuple):
    """A stage's part in a meeting, and what its operation there depends on."""

    row: int
    """The row in a flattened table `[slot, stage]`."""
    stage: int
    stream: str
    after: tuple[int, ...]
    """Rows of the same stage."""
    waits_before: int
    """The number of waits of the host before it."""


@dataclass(frozen=True)
class Meeting:
    """Operations that end together: a single one, a send and its receive, or a collective."""

    op: Op
    members: tuple[Member, ...]


_Place = tuple[int, int]
"""A slot and a stage."""


@dataclass
class _Stage:
    """The operations that a stage has not done yet."""

    queues: dict[str, deque[int]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)


class Plan:
    """A program and the order of its meetings."""

    def __init__(self, program: Program) -> None:
        self.program = program
        slot = program.slot
        self._op = [{slot[op.key]: op for op in ops} for ops in program.stages]
        self._wait = [_last_waits(program, stage) for stage in range(len(program.stages))]
        self._waits_before = [_count_waits(program, stage) for stage in range(len(program.stages))]

    @cached_property
    def meetings(self) -> tuple[Meeting, ...]:
        """Processes the queues of all streams until they are empty."""
        stages = [self._start(stage) for stage in range(len(self.program.stages))]
        found: list[Meeting] = []
        before = -1
        while any(any(stage.queues.values()) for stage in stages):
            assert len(found) > before, "deadlock: the stages of this program wait for one another"
            before = len(found)
            for at in range(len(stages)):
                self._advance(stages, at, found)
        return tuple(found)

    def _start(self, at: int) -> _Stage:
        stage = _Stage()
        for op in self.program.stages[at]:
            stage.queues.setdefault(op.stream, deque()).append(self.program.slot[op.key])
        return stage

    def _advance(self, stages: list[_Stage], at: int, found: list[Meeting]) -> None:
        """Processes all operations of this stage that are possible now."""
        before = -1
        while len(found) > before:
            before = len(found)
            for queue in stages[at].queues.values():
                while queue and self._ready(stages, members := self._members(queue[0], at)):
                    found.append(self._meet(stages, members))

    def _members(self, slot: int, at: int) -> tuple[_Place, ...]:
        op = self._op[at][slot]
        if op.partner is not None:
            there: _Place = (self.program.slot[op.partner[1]], op.partner[0])
            return ((slot, at), there) if op.kind == "send" else (there, (slot, at))
        if op.group in ACROSS_STAGES:
            has = self.program.present[slot]
            return tuple((slot, int(stage)) for stage in has.nonzero()[0])
        return ((slot, at),)

    def _ready(self, stages: list[_Stage], members: tuple[_Place, ...]) -> bool:
        return all(self._can(stages[stage], slot, stage) for slot, stage in members)

    def _can(self, stage: _Stage, slot: int, at: int) -> bool:
        """Whether an operation is first on its stream and its dependencies are done."""
        op = self._op[at][slot]
        queue = stage.queues[op.stream]
        wait = self._wait[at].get(slot)
        return (
            bool(queue)
            and queue[0] == slot
            and (wait is None or wait in stage.done)
            and stage.done.issuperset(self._after(op))
        )

    def _after(self, op: Op) -> tuple[int, ...]:
        return tuple(self.program.slot[key] for key in op.after)

    def _row(self, slot: int, stage: int) -> int:
        return slot * len(self.program.stages) + stage

    def _meet(self, stages: list[_Stage], places: tuple[_Place, ...]) -> Meeting:
        members = []
        for slot, stage in places:
            op = self._op[stage][slot]
            stages[stage].queues[op.stream].popleft()
            stages[stage].done.add(slot)
            after = tuple(self._row(other, stage) for other in self._after(op))
            waits = self._waits_before[stage][slot]
            members.append(Member(self._row(slot, stage), stage, op.stream, after, waits))
        slot, stage = places[0]
        return Meeting(self._op[stage][slot], tuple(members))


def _last_waits(program: Program, stage: int) -> dict[int, int]:
    """For each slot, the last wait of the host before it, if there is one."""
    found: dict[int, int] = {}
    last: int | None = None
    for op in program.stages[stage]:
        slot = program.slot[op.key]
        if last is not None:
            found[slot] = last
        if op.kind == "sync":
            last = slot
    return found


def _count_waits(program: Program, stage: int) -> dict[int, int]:
    """For each slot, the number of waits of the host before it."""
    found: dict[int, int] = {}
    waits = 0
    for op in program.stages[stage]:
        found[program.slot[op.key]] = waits
        waits += op.kind == "sync"
    return found
