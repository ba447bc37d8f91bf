"""Steps as the device executed them, if phases have device times.

A host runs ahead of its device and ends a step when it has launched all work, so that device phases
(ARGUS, section 4.2) would lie in a later step. If phases have device times, a step ends with the
last of them. It begins when the host began it or when the device finished the previous step,
whichever is later. If the host synchronizes with its device in each step, nothing changes. Steps
without device-timed phases keep the host's times.

Cost: one sort of the steps and of the device-timed phases.
"""

from __future__ import annotations

import numpy as np

from stepscope.window import NULL, Ints, Table, Window


def device_steps(window: Window) -> Window:
    """The window with device steps; the same window if no phases have device times."""
    steps, phases = window.table("steps"), window.table("phases")
    if steps is None or phases is None or not phases.has("host_start_ns"):
        return window
    timed = phases.take(phases.ints("host_start_ns") != NULL)
    if not len(timed) or not len(steps):
        return window
    moved = _as_executed(steps, _last_ends(steps, timed))
    return Window(window.job, {**window.tables, "steps": moved})


def _last_ends(steps: Table, timed: Table) -> Ints:
    """When the device ended each step; 0 if no phase of the step has device times."""
    keys, own = _keys(timed), _keys(steps)
    order = np.lexsort((timed.ints("start_ns") + timed.ints("duration_ns"), keys))
    keys, ends = keys[order], (timed.ints("start_ns") + timed.ints("duration_ns"))[order]
    last = np.searchsorted(keys, own, side="right") - 1
    found = (last >= 0) & (keys[last] == own)
    return np.where(found, ends[last], 0)


def _keys(table: Table) -> Ints:
    """One number for each rank and step; step numbers are always below 2**40."""
    return table.ints("rank").astype(np.int64) << 40 | table.ints("step")


def _as_executed(steps: Table, device_end: Ints) -> Table:
    begin, rank = steps.ints("start_ns"), steps.ints("rank")
    end = np.maximum(begin + steps.ints("duration_ns"), device_end)
    order = np.lexsort((steps.ints("step"), rank))
    before = np.where(np.diff(rank[order], prepend=-2) == 0, np.roll(device_end[order], 1), 0)
    start = np.empty_like(begin)
    start[order] = np.maximum(begin[order], before)
    duration = np.maximum(end - start, 0)
    return steps.with_column("start_ns", start).with_column("duration_ns", duration)
