"""Communication that no computing hides: what a rank stands in, as `Work.wait` would measure it."""

from __future__ import annotations

import numpy as np

from stepscope.window import NULL, Ints, Table


def exposed_ns(start: Ints, end: Ints, busy_start: Ints, busy_end: Ints) -> Ints:
    """How long each operator kept its rank from computing.

    Time in which several operators ran counts once, for the one that began first.
    """
    order = np.argsort(start, kind="stable")
    before = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, end[order][:-1]))
    begin = np.empty_like(start)
    begin[order] = np.maximum(start[order], before)
    finish = np.maximum(begin, end)
    covered = _Covered(busy_start, busy_end)
    return finish - begin - (covered.until(finish) - covered.until(begin))


def computing(phases: Table | None) -> tuple[Ints, Ints]:
    """When a rank was in phases that are more than communication."""
    if phases is None:
        nothing = np.zeros(0, np.int64)
        return nothing, nothing
    if phases.has("waits", "wait_ns"):
        phases = phases.take(~(phases.mask("waits") & (phases.ints("wait_ns") == NULL)))
    start = phases.ints("start_ns")
    return start, start + phases.ints("duration_ns")


class _Covered:
    """A union of intervals, and how much of it lies before a moment."""

    def __init__(self, start: Ints, end: Ints) -> None:
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate(end[order]) if len(end) else end
        self._first = np.maximum(start, np.append(start[:1], end[:-1]))
        self._last = np.maximum(end, self._first)
        self._before = np.append(0, np.cumsum(self._last - self._first))

    def until(self, moment: Ints) -> Ints:
        if not len(self._first):
            return np.zeros_like(moment)
        at = np.searchsorted(self._first, moment, side="right")
        inside = np.minimum(moment, self._last[at - 1]) - self._first[at - 1]
        found: Ints = np.where(at > 0, self._before[at - 1] + inside, 0)
        return found
