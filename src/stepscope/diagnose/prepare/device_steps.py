"""Steps as the device executed them, if phases or operators have device times.

A host runs ahead of its device and ends a step when it has launched all work, so that device phases
(ARGUS, section 4.2) would lie in a later step. If phases have device times, a step ends with the
last of them. It begins when the host began it or when the device finished the previous step,
whichever is later. If the host synchronizes with its device in each step, nothing changes. Steps
without device-timed phases keep the host's times. Where only operators have device times, a step
ends with the last of them, if most of them begin after the host had ended their step.

Cost: one sort of the steps, and of the device-timed phases or the operators.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.thresholds import HALF
from stepscope.window import NULL, Ints, Table, Window

SAMPLE = 20_000
"""Operators that are asked. Statistics: they tell the part within a hundredth."""


def device_steps(window: Window) -> Window:
    """The window with device steps; the same window if the host's are those of the device."""
    steps = window.table("steps")
    if steps is None or not len(steps):
        return window
    device_end = _by_phases(steps, window.table("phases"))
    if device_end is None:
        device_end = _by_operators(steps, window.table("comm_ops"))
    if device_end is None:
        return window
    return Window(window.job, {**window.tables, "steps": _as_executed(steps, device_end)})


def _by_phases(steps: Table, phases: Table | None) -> Ints | None:
    """When the device ended each step; None if no phase has device times."""
    if phases is None or not phases.has("host_start_ns"):
        return None
    timed = phases.take(phases.ints("host_start_ns") != NULL)
    if not len(timed):
        return None
    return _last_ends(steps, timed, timed.ints("start_ns") + timed.ints("duration_ns"))


def _by_operators(steps: Table, comm: Table | None) -> Ints | None:
    """The same by operators; None unless most of them begin after their step had ended."""
    if comm is None or not comm.has("step", "start_ns", "end_ns") or not steps.has("duration_ns"):
        return None
    sample = comm.take(np.arange(0, len(comm), max(len(comm) // SAMPLE, 1)))
    sample = sample.take((sample.ints("start_ns") != NULL) & (sample.ints("end_ns") != NULL))
    timed = steps.take((steps.ints("start_ns") != NULL) & (steps.ints("duration_ns") != NULL))
    ended = _last_ends(sample, timed, timed.ints("start_ns") + timed.ints("duration_ns"))
    late = sample.ints("start_ns") > ended
    if np.count_nonzero(late & (ended != 0)) <= HALF * np.count_nonzero(ended):
        return None
    comm = comm.take(comm.ints("end_ns") != NULL)
    return _last_ends(steps, comm, comm.ints("end_ns"))


def _last_ends(rows: Table, timed: Table, ends: Ints) -> Ints:
    """For each row, the last end of the same rank and step in another table; 0 if it has none."""
    keys, own = _keys(timed), _keys(rows)
    if not keys.size:
        return np.zeros(own.size, np.int64)
    if not ((keys[1:] > keys[:-1]) | ((keys[1:] == keys[:-1]) & (ends[1:] >= ends[:-1]))).all():
        order = np.lexsort((ends, keys))
        keys, ends = keys[order], ends[order]
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
