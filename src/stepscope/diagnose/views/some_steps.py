"""A part of a window: some steps of a job, and what happened during them; or some ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from stepscope.diagnose.finding import Span
from stepscope.diagnose.views.timeline import Timeline, timeline
from stepscope.trace import TABLES
from stepscope.window import Ints, Mask, Table, Window, known_steps

LATEST = np.iinfo(np.int64).max


def in_steps(window: Window, steps: Span) -> Window:
    """The rows of these steps, first and last included; without steps, none."""
    line = timeline(window)
    inside = np.flatnonzero(line.within(steps))
    return in_columns(window, line, int(inside[0]), int(inside[-1]) + 1) if inside.size else (
        Window(window.job))  # fmt: skip


def of_ranks(window: Window, ranks: Ints | Collection[int], names: Sequence[str]) -> Window:
    """Only these ranks, and only these tables, as far as they were recorded."""
    tables = {name: table.take(np.isin(table.ints("rank"), [*ranks])) for name in names
              if (table := window.table(name)) is not None}  # fmt: skip
    return Window(window.job, tables)


def in_columns(window: Window, line: Timeline, first: int, stop: int) -> Window:
    """The rows of a range of columns. What has no step counts by its time: before the first step
    there is nothing, and after the last column only if it is the last of all."""
    begin_ns = int(line.begins_ns[first])
    end_ns = int(line.begins_ns[stop]) if stop < len(line.steps) else LATEST
    tables = {name: table.take(_inside(name, table, line.steps[first:stop], begin_ns, end_ns))
              for name, table in window.tables.items()}  # fmt: skip
    return Window(window.job, tables)


def _inside(name: str, table: Table, steps: Ints, begin_ns: int, end_ns: int) -> Mask:
    time = TABLES[name].time if name in TABLES else ""
    within = np.ones(len(table), np.bool_)
    if table.has(time):
        within = (table.ints(time) >= begin_ns) & (table.ints(time) < end_ns)
    if not table.has("step"):
        return within
    step = table.ints("step")
    return np.where(known_steps(step), np.isin(step, steps), within)
