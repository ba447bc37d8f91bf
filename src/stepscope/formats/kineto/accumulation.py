"""Joins the profiler's steps of one training step, where a script counts microbatches.

With gradient accumulation some scripts call `profiler.step()` after each microbatch. Such steps
differ by design: only in every n-th are gradients exchanged, and does the optimizer step. What a
rank does there each time would look like a duty of its own, and hardly change the median. So where
each of the profiler's steps has a backward pass, and the optimizer steps in exactly every n-th, n
of them are one step, which ends with the optimizer's.

Cost: one pass over the steps. Cannot see: scripts whose optimizer is not annotated; sizes of
accumulation that change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.formats.kineto.rank_trace import RankTrace
from stepscope.trace import BACKWARD, OPTIMIZER
from stepscope.window import NULL, Ints, Table, distinct

LEAST_STEPS = 3
"""Steps of the optimizer on each rank: two are always a regular distance apart. Statistics."""
_OF_WINDOWS = ("first_step", "last_step")
"""Numbers of steps in table `patterns`."""
_JOINED = (
    "the optimizer steps in every {every} of the profiler's steps: {count} of these are one step, "
    "and are numbered together"
)


@dataclass(frozen=True)
class _Rhythm:
    """The optimizer steps in the profiler's steps of which `number % count == last`."""

    count: int
    last: int

    def step_of(self, number: Ints) -> Ints:
        """The training step that each of the profiler's steps belongs to; NULL of NULL."""
        step = (number - self.last - 1) // self.count + 1
        return np.asarray(np.where(number == NULL, NULL, step))

    def first_of(self, step: Ints) -> Ints:
        """The first of the profiler's steps in each training step."""
        return (step - 1) * self.count + self.last + 1


def with_whole_steps(traces: Sequence[RankTrace]) -> tuple[list[RankTrace], tuple[str, ...]]:
    """The traces by training steps, with a line that says so if these are several of the
    profiler's; steps of which a part was not recorded are left out."""
    rhythm = _rhythm(traces)
    if rhythm is None:
        return list(traces), ()
    said = _JOINED.format(every=_ordinal(rhythm.count), count=rhythm.count)
    return [_by_steps(trace, rhythm) for trace in traces], (said,)


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if 10 < number % 100 < 14 else ending}"


def _rhythm(traces: Sequence[RankTrace]) -> _Rhythm | None:
    """In which of the profiler's steps the optimizer steps; None if in all, or irregularly."""
    if any(one.steps_found_by or not {"steps", "phases"} <= one.tables.keys() for one in traces):
        return None
    stepped = [_steps_with(one, OPTIMIZER) for one in traces]
    apart = np.concatenate([np.zeros(0, np.int64), *(np.diff(one) for one in stepped)])
    if not apart.size or apart.min() < 2:
        return None
    first = next(one for one in stepped if one.size)
    rhythm = _Rhythm(int(apart.min()), int(first[0] % apart.min()))
    times: Counter[int | None] = Counter()
    for trace, steps in zip(traces, stepped, strict=True):
        marked = distinct(trace.tables["steps"].ints("step"))
        expected = marked[marked % rhythm.count == rhythm.last]
        if not np.array_equal(steps, expected) or not _accumulates(trace, marked):
            return None
        times[trace.rank] += steps.size
    return rhythm if min(times.values()) >= LEAST_STEPS else None


def _accumulates(trace: RankTrace, marked: Ints) -> bool:
    """Whether each of the profiler's steps has a backward pass, and none is missing."""
    return np.array_equal(_steps_with(trace, BACKWARD), marked) and bool(
        marked.size and marked[-1] - marked[0] == marked.size - 1
    )


def _steps_with(trace: RankTrace, phase: str) -> Ints:
    phases = trace.tables["phases"]
    return distinct(phases.ints("step")[phases.strings("phase").equals(phase)])


def _by_steps(trace: RankTrace, rhythm: _Rhythm) -> RankTrace:
    marked = distinct(trace.tables["steps"].ints("step"))
    number, length = np.unique(rhythm.step_of(marked), return_counts=True)
    whole = number[length == rhythm.count]
    tables = {name: _renumbered(table, rhythm, whole) for name, table in trace.tables.items()}
    tables["steps"] = _joined(tables["steps"])
    tables["phases"] = _counted(trace.tables["phases"], tables["phases"], rhythm)
    kept = {name: table for name, table in tables.items() if len(table)}
    return replace(trace, tables=kept)


def _renumbered(table: Table, rhythm: _Rhythm, whole: Ints) -> Table:
    for name in _OF_WINDOWS:
        if table.has(name):
            table = table.with_column(name, rhythm.step_of(table.ints(name)))
    if not table.has("step"):
        return table
    step = rhythm.step_of(table.ints("step"))
    return table.with_column("step", np.where(np.isin(step, whole), step, NULL))


def _joined(steps: Table) -> Table:
    """One row for each step, from its first begin to its last end."""
    steps = steps.take(steps.ints("step") != NULL)
    number, first = np.unique(steps.ints("step"), return_index=True)
    start = steps.ints("start_ns")
    end = start + steps.ints("duration_ns")
    begins = start[first]
    ends = np.maximum.reduceat(end, first) if first.size else end
    joined = Table({"step": number, "start_ns": begins, "duration_ns": ends - begins})
    if not steps.has("host_ns") or not first.size:
        return joined
    return joined.with_column("host_ns", np.add.reduceat(steps.ints("host_ns"), first))


def _counted(before: Table, phases: Table, rhythm: _Rhythm) -> Table:
    """The phases of these steps, with microbatches counted from each step's first."""
    kept = phases.ints("step") != NULL
    phases, marked = phases.take(kept), before.ints("step")[kept]
    if not marked.size:
        return phases
    origin = rhythm.first_of(phases.ints("step")).min()
    passes = np.bincount(marked[phases.strings("phase").equals(BACKWARD)] - origin)
    earlier = np.concatenate(([0], np.cumsum(passes)))
    first = rhythm.first_of(phases.ints("step"))
    offset = earlier[marked - origin] - earlier[first - origin]
    own = phases.ints("microbatch")
    return phases.with_column("microbatch", np.where(own < 0, -1, own + offset))
