"""Which stretch of host time is which training step.

`ProfilerStep#N` says it. Else a step ends where an optimizer has stepped and a backward follows;
else it begins where a DataLoader is asked; else it is the shortest stretch after which the sequence
of operators repeats (kernels, where no operators were recorded), cut at an operator that comes once
in each. Found steps are numbered from 0. What lies before the first boundary is no whole step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stepscope.formats.kineto.recording import Recording
from stepscope.formats.kineto.spans import ends, named, outermost
from stepscope.window import NULL, Floats, Ints, Table

PROFILER_STEP = "ProfilerStep#"
OPTIMIZER_STEP = "Optimizer.step#"
LOADER = "enumerate(DataLoader)#"
AUTOGRAD = "autograd::engine::evaluate_function"
LEAST_REPEATED = 0.9
"""Part of the operators that must come again one period later: steps differ in a few branches."""
AS_GOOD = 0.005
"""The shortest period within this of the best: multiples of a period repeat as well as it does."""
LONGEST_SEQUENCE = 1 << 17
"""Operators in which a period is looked for; a step has some thousands."""
_PROJECTIONS = 8
_LEAST_OPERATORS = 8


@dataclass(frozen=True)
class Steps:
    """Steps in order of time; `found_by` is empty where the trace says them itself."""

    number: Ints
    start_ns: Ints
    end_ns: Ints
    found_by: str = ""

    def of(self, time_ns: Ints) -> Ints:
        """The step that each moment lies in, NULL for none."""
        if not self.number.size:
            return np.full(time_ns.shape, NULL)
        at = np.searchsorted(self.start_ns, time_ns, side="right") - 1
        index = np.maximum(at, 0)
        inside = (at >= 0) & (time_ns < self.end_ns[index])
        return np.where(inside, self.number[index], NULL)


NO_STEPS = Steps(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))


def find_steps(seen: Recording, operators: Table) -> Steps:
    """The steps of a recording, given its outermost operators."""
    ways: tuple[Callable[[], Steps], ...] = (
        lambda: _annotated(seen),
        lambda: _by_optimizer(seen),
        lambda: _by_loader(seen),
        lambda: _by_repetition(seen, operators),
    )
    found = (way() for way in ways)
    return next((steps for steps in found if steps.number.size), NO_STEPS)


def _annotated(seen: Recording) -> Steps:
    tables = [table.take(named(table, PROFILER_STEP)) for table in (seen.marks, seen.cpu)]
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


def _by_optimizer(seen: Recording) -> Steps:
    marks = _marks(seen, OPTIMIZER_STEP)
    if not len(marks):
        return NO_STEPS
    backward = np.sort(seen.cpu.ints("start_ns")[named(seen.cpu, AUTOGRAD)])
    start, end = marks.ints("start_ns"), ends(marks)
    before = np.searchsorted(backward, start)
    closes = np.append(before[1:] > before[:-1], True) | (backward.size == 0)
    begins = np.array([_first(seen)]) if not backward.size or before[0] else np.zeros(0, np.int64)
    return _between(np.concatenate((begins, end[closes])), OPTIMIZER_STEP)


def _by_loader(seen: Recording) -> Steps:
    return _between(_marks(seen, LOADER).ints("start_ns"), LOADER)


def _marks(seen: Recording, prefix: str) -> Table:
    """Outermost annotations of a name; old exporters call them operators."""
    for table in (seen.marks, seen.cpu):
        chosen = table.take(named(table, prefix))
        if len(chosen):
            return chosen.take(outermost(chosen))
    return seen.marks.take(np.zeros(0, np.intp))


def _first(seen: Recording) -> int:
    return int(seen.cpu.ints("start_ns").min(initial=np.iinfo(np.int64).max))


def _between(boundaries: Ints, found_by: str) -> Steps:
    boundaries = np.unique(boundaries)
    if boundaries.size < 2:
        return NO_STEPS
    count = np.arange(boundaries.size - 1, dtype=np.int64)
    return Steps(count, boundaries[:-1], boundaries[1:], found_by.rstrip("#"))


def _by_repetition(seen: Recording, operators: Table) -> Steps:
    sequence, kind = _sequence(seen, operators)
    names = sequence.strings("name").codes[:LONGEST_SEQUENCE].astype(np.int64)
    period = repetition(names)
    if period is None:
        return NO_STEPS
    anchor = _once_in_each(names, period)
    if anchor is None:
        return NO_STEPS
    chosen = sequence.strings("name").codes == anchor
    return _between(sequence.ints("start_ns")[chosen], f"the repeating sequence of {kind}")


def _sequence(seen: Recording, operators: Table) -> tuple[Table, str]:
    """What ran in order: operators of the busiest thread, or kernels of the busiest stream."""
    for table, lane, kind in (
        (operators, "thread", "operators"),
        (seen.device, "stream", "kernels"),
    ):
        if len(table):
            lanes, count = np.unique(table.ints(lane), return_counts=True)
            return table.take(table.ints(lane) == lanes[np.argmax(count)]), kind
    return operators, "operators"


def repetition(names: Ints) -> int | None:
    """The shortest distance after which (nearly) the whole sequence comes again.

    How many positions agree at each distance is an autocorrelation; with names replaced by random
    signs a few transforms estimate it for all distances at once.
    """
    size = names.size
    if size < _LEAST_OPERATORS:
        return None
    agree = _agreement(names)[1 : size // 2 + 1] / np.arange(size - 1, size - size // 2 - 1, -1)
    likely = 1 + np.argsort(-agree, kind="stable")[:64]
    share = {int(lag): float(np.mean(names[lag:] == names[:-lag])) for lag in likely}
    best = max(share.values())
    if best < LEAST_REPEATED or np.unique(names).size < 2:
        return None
    return min(lag for lag, part in share.items() if part >= best - AS_GOOD)


def _agreement(names: Ints) -> Floats:
    """For each distance, about how many positions agree with the one so far behind."""
    _, codes = np.unique(names, return_inverse=True)
    random = np.random.default_rng(0)
    width = 2 * names.size
    total = np.zeros(width)
    for _ in range(_PROJECTIONS):
        signs = random.choice(np.array([-1.0, 1.0]), size=int(codes.max()) + 1)
        spectrum = np.fft.rfft(signs[codes], width)
        total += np.fft.irfft(np.abs(spectrum) ** 2, width)
    return np.asarray(total[: names.size] / _PROJECTIONS, np.float64)


def _once_in_each(names: Ints, period: int) -> int | None:
    """The first name that comes once per period, the commonest distance apart."""
    count = np.bincount(names)
    for name in dict.fromkeys(names[:period].tolist()):
        apart = np.diff(np.flatnonzero(names == name))
        if count[name] >= 2 and np.median(apart) == period and (apart >= period / 2).all():
            return int(name)
    return None
