"""Cuts a few steps out of a recording, as if a collector had run only that long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from stepscope.evaluate.columns import lasts
from stepscope.window import NULL, Mask, Table, Window, distinct

BEFORE = 2
"""Steps that are kept before the first one with a fault."""
FOREVER = np.iinfo(np.int64).max
NUMBERED = ("steps", "phases", "comm_ops")
"""Tables that show which steps there were; a step that never ended has no row in `steps`."""


def around(window: Window, step: int | None, count: int) -> Window:
    """`count` steps: two before `step` and the others from it on; without `step` the last ones."""
    chosen = numbers(window, step, count)
    return window if chosen is None else of_steps(window, chosen)


def until_unfinished(window: Window) -> Window:
    """Without the first step that some rank did not end, and all later ones."""
    steps, known = window.table("steps"), first_and_last(window)
    if steps is None or known is None:
        return window
    number = steps.ints("step")[steps.ints("duration_ns") != NULL]
    ended = np.bincount(number - known[0], minlength=known[1] - known[0] + 1)
    whole = np.append(ended >= len(window.ranks), False)
    stop = known[0] + int(np.argmin(whole))
    return window if stop > known[1] else of_steps(window, range(known[0], stop))


def of_steps(window: Window, chosen: range) -> Window:
    """Only these steps."""
    spans = _spans(window, chosen)
    tables = {name: _cut(name, table, chosen, spans) for name, table in window.tables.items()}
    job = window.job
    if spans.end_ns != FOREVER:
        job = replace(job, observed_until_ns=spans.end_ns)
    return Window(job, tables)


def numbers(window: Window, step: int | None, count: int) -> range | None:
    """The numbers of the steps that `around` keeps; None if the recording has no steps."""
    known = first_and_last(window)
    if known is None:
        return None
    first, last = known
    begin = last - count + 1 if step is None else step - BEFORE
    begin = max(min(begin, last - count + 1), first)
    return range(begin, begin + count)


def first_and_last(window: Window) -> tuple[int, int] | None:
    """The numbers of the first and the last step; None if the recording has none."""
    found = [table.ints("step") for name in NUMBERED if (table := window.table(name))]
    steps = distinct(np.concatenate([np.zeros(0, np.int64), *found]))
    steps = steps[steps != NULL]
    return (int(steps[0]), int(steps[-1])) if steps.size else None


@dataclass(frozen=True)
class _Spans:
    """When the chosen steps began and ended, by the clock of each rank."""

    by_rank: Mapping[int, tuple[int, int]]
    start_ns: int
    end_ns: int
    """`FOREVER` if the last step of the recording is among them."""

    def inside(self, name: str, table: Table) -> Mask:
        """The rows that begin and end within the steps; those of no rank by the whole job."""
        begin, until = lasts(name, table)
        found = np.zeros(len(table), np.bool_)
        rank = table.ints("rank")
        for one in distinct(rank).tolist():
            start, end = self.by_rank.get(one, (self.start_ns, self.end_ns))
            found |= (rank == one) & (begin >= start) & (until <= end)
        return found


def _spans(window: Window, chosen: range) -> _Spans:
    known = first_and_last(window)
    is_last = known is not None and chosen.stop > known[1]
    found: dict[int, tuple[int, int]] = {}
    for name in ("steps", "phases"):
        table = window.table(name)
        for rank, rows in table.take(_of(table, chosen)).per_rank() if table else ():
            start, end = lasts(name, rows)
            before = found.get(rank, (FOREVER, 0))
            until = FOREVER if is_last else max(before[1], int(end.max()))
            found[rank] = (min(before[0], int(start.min())), until)
    begins, ends = zip(*found.values(), strict=True) if found else ((0,), (FOREVER,))
    return _Spans(found, min(begins), max(ends))


def _cut(name: str, table: Table, chosen: range, spans: _Spans) -> Table:
    if table.has("step"):
        return table.take(_of(table, chosen))
    return table.take(spans.inside(name, table))


def _of(table: Table, chosen: range) -> Mask:
    step = table.ints("step")
    return (step >= chosen.start) & (step < chosen.stop)
