"""Finds the training steps in host time.

`ProfilerStep#N` marks them. Otherwise a step ends when an optimizer has stepped and a backward
follows; else it begins when the DataLoader is called; else at an operator that recurs at equal
distances in the sequence of operators (or of kernels, if no operators were recorded). Steps found
this way are numbered from 0. Time before the first boundary belongs to no step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from stepscope.formats.kineto.names import AUTOGRAD, LOADER, OPTIMIZER_STEP, PROFILER_STEP
from stepscope.formats.kineto.recording import Recording
from stepscope.formats.kineto.spans import ends, named, outermost
from stepscope.window import NULL, Ints, Table, distinct

REGULAR = 0.8
"""Smallest ratio of shortest to longest distance for an operator that runs once per step: steps may
differ in a few branches, and profilers lose events."""
LEAST_STEPS = 3
"""With fewer, distances are trivially regular."""
SHORTEST_STEP = 4
"""Fewest operators in a step; shorter cycles are inner loops."""


@dataclass(frozen=True)
class Steps:
    """Steps in order of time; `found_by` is empty if the trace marks them."""

    number: Ints
    start_ns: Ints
    end_ns: Ints
    found_by: str = ""

    def of(self, time_ns: Ints) -> Ints:
        """The step of each time; NULL if there is none."""
        at = self.places(time_ns)
        return np.where(at >= 0, np.append(self.number, NULL)[at], NULL)

    def until(self, stop: int) -> Steps:
        """The first steps."""
        return replace(self, number=self.number[:stop], start_ns=self.start_ns[:stop],
                       end_ns=self.end_ns[:stop])  # fmt: skip

    def places(self, time_ns: Ints) -> Ints:
        """Where the step of each time is in these columns; -1 if there is none."""
        if not self.number.size:
            return np.full(time_ns.shape, -1)
        at = np.searchsorted(self.start_ns, time_ns, side="right") - 1
        return np.where((at >= 0) & (time_ns < self.end_ns[np.maximum(at, 0)]), at, -1)


NO_STEPS = Steps(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))


def find_steps(recorded: Recording, operators: Table) -> Steps:
    """The steps of a recording, given its outermost operators."""
    ways: tuple[Callable[[], Steps], ...] = (
        lambda: _annotated(recorded),
        lambda: _by_optimizer(recorded),
        lambda: _by_loader(recorded),
        lambda: _by_repetition(recorded, operators),
    )
    found = (way() for way in ways)
    return next((steps for steps in found if steps.number.size), NO_STEPS)


def _annotated(recorded: Recording) -> Steps:
    tables = [table.take(named(table, PROFILER_STEP)) for table in (recorded.marks, recorded.cpu)]
    numbers = np.concatenate([_numbers(table) for table in tables])
    start = np.concatenate([table.ints("start_ns") for table in tables])
    end = np.concatenate([ends(table) for table in tables])
    order = np.lexsort((numbers, start))
    order = order[numbers[order] >= 0]
    _, first = np.unique(numbers[order], return_index=True)
    order = order[np.sort(first)]
    return Steps(numbers[order], start[order], end[order])


def _numbers(table: Table) -> Ints:
    names = table.strings("name")
    digits = [value.partition("#")[2].strip() for value in names.values]
    known = [int(d) if d.isdecimal() and len(d) < 18 else -1 for d in digits]
    return np.array(known or [-1], np.int64)[names.codes]


def _by_optimizer(recorded: Recording) -> Steps:
    marks = _marks(recorded, OPTIMIZER_STEP)
    if not len(marks):
        return NO_STEPS
    backward = np.sort(recorded.cpu.ints("start_ns")[named(recorded.cpu, AUTOGRAD)])
    start, end = marks.ints("start_ns"), ends(marks)
    before = np.searchsorted(backward, start)
    closes = np.append(before[1:] > before[:-1], True) | (backward.size == 0)
    begins = (
        np.array([_first(recorded)]) if not backward.size or before[0] else np.zeros(0, np.int64)
    )
    return _between(np.concatenate((begins, end[closes])), OPTIMIZER_STEP)


def _by_loader(recorded: Recording) -> Steps:
    return _between(_marks(recorded, LOADER).ints("start_ns"), LOADER)


def _marks(recorded: Recording, prefix: str) -> Table:
    """Outermost annotations with a name prefix; old exporters write them as operators."""
    for table in (recorded.marks, recorded.cpu):
        chosen = table.take(named(table, prefix))
        if len(chosen):
            return chosen.take(outermost(chosen))
    return recorded.marks.take(np.zeros(0, np.intp))


def _first(recorded: Recording) -> int:
    """The first operator, or the first call of the DataLoader if it is earlier."""
    starts = [table.ints("start_ns") for table in (recorded.cpu, _marks(recorded, LOADER))]
    return int(np.concatenate(starts).min(initial=np.iinfo(np.int64).max))


def _between(boundaries: Ints, found_by: str) -> Steps:
    boundaries = distinct(boundaries)
    if boundaries.size < 2:
        return NO_STEPS
    count = np.arange(boundaries.size - 1, dtype=np.int64)
    return Steps(count, boundaries[:-1], boundaries[1:], found_by.rstrip("#"))


def _by_repetition(recorded: Recording, operators: Table) -> Steps:
    sequence, kind = _sequence(recorded, operators)
    sequence = _without_repeats(sequence)
    names = sequence.strings("name").codes.astype(np.int64)
    anchor = _once_in_each(names)
    if anchor is None:
        return NO_STEPS
    starts = sequence.ints("start_ns")[names == anchor]
    return _between(starts, f"the repeating sequence of {kind}")


def _sequence(recorded: Recording, operators: Table) -> tuple[Table, str]:
    """Operators of the busiest thread, else kernels of the busiest stream, in order."""
    for table, lane, kind in (
        (operators, "thread", "operators"),
        (recorded.device, "stream", "kernels"),
    ):
        if len(table):
            lanes, count = np.unique(table.ints(lane), return_counts=True)
            return table.take(table.ints(lane) == lanes[np.argmax(count)]), kind
    return operators, "operators"


def _without_repeats(sequence: Table) -> Table:
    """The first of each run of one name: an optimizer launches one kernel after another."""
    names = sequence.strings("name").codes.astype(np.int64)
    return sequence.take(np.diff(names, prepend=-1) != 0)


def _once_in_each(names: Ints) -> int | None:
    """The first name that occurs once per step, that is at (nearly) equal distances.

    Operators of a layer do not, because of the loss and the backward pass between two steps.
    Several distances may be regular (microbatches, a log line every tenth step); the most frequent
    wins.
    """
    if names.size < LEAST_STEPS:
        return None
    order = np.argsort(names, kind="stable")
    begins = np.flatnonzero(np.diff(names[order], prepend=-1))
    count = np.diff(np.append(begins, names.size))
    apart = np.diff(order, append=order[-1])
    often = count >= LEAST_STEPS
    closest, widest = np.full(count.size, 0), np.full(count.size, names.size)
    for at in np.flatnonzero(often):
        inside = apart[begins[at] : begins[at] + count[at] - 1]
        closest[at], widest[at] = inside.min(), inside.max()
    regular = often & (closest >= REGULAR * widest) & (widest * count >= names.size / 2)
    regular &= widest >= SHORTEST_STEP
    if not regular.any():
        return None
    counts, shared = np.unique(count[regular], return_counts=True)
    chosen = regular & (count == counts[np.argmax(shared)])
    first = order[begins[chosen]].min()
    return int(names[first])
