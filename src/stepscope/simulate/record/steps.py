"""Tables `steps` and `phases`: what the framework's own timers would have shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from stepscope.simulate.engine import NEVER
from stepscope.simulate.program import Op
from stepscope.simulate.record.moment import Clocks, Moment
from stepscope.simulate.record.rows import Rows
from stepscope.simulate.workload import ATTENTION, EXPERTS, MLP
from stepscope.simulate.world import World
from stepscope.trace import BACKWARD, DATA_LOAD, FORWARD
from stepscope.window import NULL, Ints, Mask

INNER = (ATTENTION, MLP, EXPERTS)
BLOCKING = ("tp", "cp", "ep")
"""Groups whose operators stand between two computations of one pass."""
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
    """The phases of one stage: where each begins and ends, and where it waits for others."""

    phase: Ints
    """Codes of names."""
    microbatch: Ints
    first: Ints
    """Slots."""
    last: Ints
    waiting: Ints
    """`[phase, operator]`: the slots of its communication, -1 where there are fewer."""
    communicates: Mask


@dataclass
class PhaseRows:
    """One row per phase, microbatch and rank that came to its end."""

    world: World
    clocks: Clocks
    inner: bool
    rows: Rows = field(default_factory=lambda: Rows(frozenset({"phase"})))

    def add(self, moment: Moment) -> None:
        for stage, spans in enumerate(self._spans):
            self._add(moment, stage, spans)

    def _add(self, moment: Moment, stage: int, spans: _Spans) -> None:
        times, costs = moment.times, moment.costs
        begin, end = times.begin[spans.first, stage], times.end[spans.last, stage]
        loading = spans.phase == self.rows.code(DATA_LOAD)
        begin[loading] -= costs.issuing[spans.first[loading], stage]
        places = np.arange(begin.shape[1]) + stage * self.world.cluster.per_stage
        shown = self.clocks.show(begin, places)
        waits = spans.communicates | (spans.waiting >= 0).any(axis=1)
        self.rows.add_known(
            end < NEVER,
            rank=self.world.cluster.rank_of[places].astype(np.int32), step=np.int64(moment.step),
            phase=spans.phase.astype(np.int32)[:, None],
            microbatch=spans.microbatch.astype(np.int32)[:, None], start_ns=shown,
            duration_ns=self.clocks.show(end, places) - shown, waits=waits[:, None],
            wait_ns=self._waited(moment, stage, spans),
        )  # fmt: skip

    def _waited(self, moment: Moment, stage: int, spans: _Spans) -> Ints:
        """Time within communication; of operators that are phases themselves it is not told."""
        slots = spans.waiting
        begin, end = moment.times.begin[slots, stage], moment.times.end[slots, stage]
        inside = (slots >= 0)[:, :, None] & (end < NEVER)
        waited: Ints = np.where(inside, end - begin, 0).sum(axis=1)
        waited[spans.communicates] = NULL
        return waited

    @cached_property
    def _spans(self) -> list[_Spans]:
        return [self._spans_of(stage) for stage in range(self.world.cluster.stages)]

    def _spans_of(self, stage: int) -> _Spans:
        found = list(self._phases_of(stage))
        slot = self.world.program.slot
        waiting = [[slot[op.key] for op in ops if op.group in BLOCKING] for _, _, ops in found]
        table = np.full((len(found), max(map(len, waiting))), -1)
        for at, slots in enumerate(waiting):
            table[at, : len(slots)] = slots
        return _Spans(
            self.rows.codes([phase for phase, _, _ in found]).astype(np.int64),
            np.array([microbatch for _, microbatch, _ in found]),
            np.array([slot[ops[0].key] for _, _, ops in found]),
            np.array([slot[ops[-1].key] for _, _, ops in found]), table,
            np.array([phase not in (FORWARD, BACKWARD) and ops[0].kind == "collective"
                      for phase, _, ops in found]),
        )  # fmt: skip

    def _phases_of(self, stage: int) -> Iterator[tuple[str, int, list[Op]]]:
        """Names, microbatches and operations in order."""
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
