"""Steps in which a profiler ran: they take longer because of it, and are not judged.

Lossy on purpose: the rows of these steps, and of the step after them, in which the profiler stops
and traces are written, are left out of all that is compared step by step; so are stacks that were
sampled meanwhile. Hangs are looked for in all rows.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.finding import Skipped, Span
from stepscope.diagnose.thresholds import HALF
from stepscope.window import NULL, Ints, Mask, Table, Window

BY_STEP = ("steps", "phases", "comm_ops", "kernels", "host_ops", "pauses")
AFTER = 1
"""Steps after a window in which the training thread waits until the profiler has stopped, and a
rank may still write its trace. Our choice."""


def profiled_steps(window: Window) -> list[Span]:
    """First and last step of every window of profiling; none where they are not known.

    Of windows that were recorded, also where their traces were never summarized.
    """
    found = {*_spans(window.table("patterns")), *_spans(_recorded(window.table("profiles")))}
    return sorted(found)


def _recorded(table: Table | None) -> Table | None:
    """The rows of ranks that have profiled; others were only asked to."""
    if table is None or not table.has("duration_ns"):
        return None
    return table.take(table.ints("duration_ns") != NULL)


def _spans(table: Table | None) -> list[Span]:
    if table is None or not table.has("first_step", "last_step"):
        return []
    first, last = table.ints("first_step"), table.ints("last_step")
    known = (first != NULL) & (first >= 0) & (last >= first)
    pairs = np.unique(np.stack([first[known], last[known]]), axis=1)
    return [(int(a), int(b)) for a, b in pairs.T]


def without_profiled(window: Window) -> tuple[Window, tuple[Skipped, ...]]:
    """The window without profiled steps, and a note on them; the same one where there are none."""
    spans, steps = profiled_steps(window), window.table("steps")
    if not spans or steps is None:
        return window, ()
    numbers = np.unique(steps.ints("step"))
    left_out = inside(numbers, spans)
    if not left_out.any() or left_out.sum() > HALF * numbers.size:
        return window, ()
    tables = dict(window.tables)
    for name in BY_STEP:
        table = window.table(name)
        if table is not None and table.has("step"):
            tables[name] = table.take(~inside(table.ints("step"), spans))
    stacks = window.table("stacks")
    if stacks is not None:
        tables["stacks"] = stacks.take(~_meanwhile(stacks, steps, spans))
    count = int(left_out.sum())
    why = "a profiler ran in them, which makes them longer"
    return Window(window.job, tables), (Skipped(f"{count} profiled steps", why),)


def inside(steps: Ints, spans: list[Span]) -> Mask:
    """Which steps a profiler ran in, or wrote its trace."""
    found = np.zeros(steps.shape, np.bool_)
    for first, last in spans:
        found |= (steps >= first) & (steps <= last + AFTER)
    return found


def _meanwhile(stacks: Table, steps: Table, spans: list[Span]) -> Mask:
    """Which stacks were sampled in profiled steps of their rank, if times are known."""
    found = np.zeros(len(stacks.ints("rank")), np.bool_)
    if not steps.has("start_ns", "duration_ns"):
        return found
    rank, step = steps.ints("rank"), steps.ints("step")
    begin, lasted = steps.ints("start_ns"), steps.ints("duration_ns")
    timed = (begin != NULL) & (lasted != NULL)
    ranks, sampled = np.unique(rank), stacks.ints("rank")
    row = np.minimum(np.searchsorted(ranks, sampled), len(ranks) - 1)
    known, at = ranks[row] == sampled, stacks.ints("start_ns")
    for span in spans:
        rows = timed & inside(step, [span])
        first = np.full(len(ranks), np.iinfo(np.int64).max)
        end = np.full(len(ranks), np.iinfo(np.int64).min)
        place = np.searchsorted(ranks, rank[rows])
        np.minimum.at(first, place, begin[rows])
        np.maximum.at(end, place, begin[rows] + lasted[rows])
        found |= known & (at >= first[row]) & (at < end[row])
    return found
