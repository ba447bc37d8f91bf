"""Tables `steps` and `phases`: what the framework's own timers would record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from stepscope.simulate.engine import NEVER
from stepscope.simulate.program import Op
from stepscope.simulate.record.moment import Clocks, Dials, Moment, by_row
from stepscope.simulate.record.rows import Rows
from stepscope.simulate.workload import ATTENTION, EXPERTS, MLP
from stepscope.simulate.world import World
from stepscope.trace import BACKWARD, DATA_LOAD, FORWARD
from stepscope.window import NULL, Ints, Mask

INNER = (ATTENTION, MLP, EXPERTS)
BLOCKING = ("tp", "cp", "ep")
"""Groups whose operators are between two computations of one pass."""
NO_MICROBATCH = -1


@dataclass
class StepRows:
    """One row per rank and finished step."""

    world: World
    clocks: Clocks
    rows: Rows = field(default_factory=Rows)

    def add(self, moment: Moment) -> None:
        if not moment.finished:
            return
        places = np.arange(self.world.scenario.ranks)
        start, done = moment.start.ravel(), moment.times.done.ravel()
        shown = self.clocks.show(start, places)
        self.rows.add(rank=self.world.cluster.rank_of.astype(np.int32),
                      step=np.int64(moment.step), start_ns=shown,
                      duration_ns=self.clocks.show(done, places) - shown)  # fmt: skip


@dataclass(frozen=True)
class _Spans:
    """The phases of all stages: the operations in which each starts, ends, and waits for others.

    Operations are rows of a table `[slot, stage]`.
    """

    stage: Ints
    phase: Ints
    """Codes of the phases' names."""
    microbatch: Ints
    first: Ints
    last: Ints
    waiting: Ints
    """`[phase, operator]`: the phase's communication, padded with -1."""
    communicates: Mask


@dataclass
class PhaseRows:
    """One row per finished phase, microbatch and rank."""

    world: World
    clocks: Clocks
    inner: bool
    rows: Rows = field(default_factory=lambda: Rows(frozenset({"phase"})))

    def add(self, moment: Moment) -> None:
        spans, issuing = self._spans, by_row(moment.costs.issuing)
        begin, end = by_row(moment.times.begin), by_row(moment.times.end)
        waited = _waited(spans, begin, end)
        begin, end = begin[spans.first], end[spans.last]
        loading = spans.phase == self.rows.code(DATA_LOAD)
        begin[loading] -= issuing[spans.first[loading]]
        shown = self._dials.show(begin)
        waits = spans.communicates | (spans.waiting >= 0).any(axis=1)
        self.rows.add_known(
            end < NEVER,
            rank=self.world.cluster.rank_of[self._places].astype(np.int32),
            step=np.int64(moment.step), phase=spans.phase.astype(np.int32)[:, None],
            microbatch=spans.microbatch.astype(np.int32)[:, None], start_ns=shown,
            duration_ns=self._dials.show(end) - shown, waits=waits[:, None], wait_ns=waited,
        )  # fmt: skip

    @cached_property
    def _places(self) -> Ints:
        """`[phase, rank within the stage]`."""
        per_stage = self.world.cluster.per_stage
        places: Ints = self._spans.stage[:, None] * per_stage + np.arange(per_stage)
        return places

    @cached_property
    def _dials(self) -> Dials:
        return self.clocks.at(self._places)

    @cached_property
    def _spans(self) -> _Spans:
        found = [(stage, *phase) for stage in range(self.world.cluster.stages)
                 for phase in self._phases_of(stage)]  # fmt: skip
        slot, stages = self.world.program.slot, self.world.cluster.stages
        waiting = [[slot[op.key] * stages + stage for op in ops if op.group in BLOCKING]
                   for stage, _, _, ops in found]  # fmt: skip
        table = np.full((len(found), max(map(len, waiting))), -1)
        for at, rows in enumerate(waiting):
            table[at, : len(rows)] = rows
        return _Spans(
            np.array([stage for stage, _, _, _ in found]),
            self.rows.codes([phase for _, phase, _, _ in found]).astype(np.int64),
            np.array([microbatch for _, _, microbatch, _ in found]),
            np.array([slot[ops[0].key] * stages + stage for stage, _, _, ops in found]),
            np.array([slot[ops[-1].key] * stages + stage for stage, _, _, ops in found]), table,
            np.array([phase not in (FORWARD, BACKWARD) and ops[0].kind == "collective"
                      for _, phase, _, ops in found]),
        )  # fmt: skip

    def _phases_of(self, stage: int) -> Iterator[tuple[str, int, list[Op]]]:
        """Names, microbatches and operations, in order."""
        passes: dict[tuple[str, int, int], list[Op]] = {}
        for op in self.world.program.stages[stage]:
            if op.phase in (FORWARD, BACKWARD):
                passes.setdefault((op.phase, op.chunk, op.microbatch), []).append(op)
                if self.inner and op.name in INNER:
                    yield op.name, op.microbatch, [op]
            elif op.phase and op.group != "pp":
                yield op.phase, NO_MICROBATCH, [op]
        for (phase, _, microbatch), ops in passes.items():
            yield phase, microbatch, ops


def _waited(spans: _Spans, begin: Ints, end: Ints) -> Ints:
    """Time within communication; unknown for phases that are one communication operator."""
    rows = spans.waiting
    inside = (rows >= 0)[:, :, None] & (end[rows] < NEVER)
    waited: Ints = np.where(inside, end[rows] - begin[rows], 0).sum(axis=1)
    waited[spans.communicates] = NULL
    return waited
