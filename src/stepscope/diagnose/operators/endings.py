"""When the processes of a stuck job ended, and what had been observed until then.

A stuck job gets killed, at once or rank by rank. In the end all ranks are stopped or dead, and only
what was observed before distinguishes the culprit from those that waited for it. So a hang is first
judged as of the moment before any process stopped, then by which of them stopped first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from stepscope.diagnose.operators.liveness import STOPPED, stopped_since
from stepscope.window import Table, Window


def first_ending(window: Window, ranks: Collection[int]) -> int | None:
    """When the first of these ranks stopped or died for good; None if none did."""
    hardware = window.table("hardware")
    if hardware is None:
        return None
    states = hardware.take(hardware.strings("metric").equals("proc_stopped"))
    ends = [_ending(own) for rank, own in states.per_rank() if rank in ranks]
    return min((end for end in ends if end is not None), default=None)


def while_all_ran(window: Window) -> Window:
    """The window as observed until the first process of all was last seen running.

    It ended after that sample, and what others were sampled in afterwards may be their own ending.
    """
    hardware = window.table("hardware")
    if hardware is None:
        return window
    states = hardware.take(hardware.strings("metric").equals("proc_stopped"))
    ran = [_last_running(own, end) for _, own in states.per_rank()
           if (end := _ending(own)) is not None]  # fmt: skip
    return observed_before(window, min(ran) + 1) if ran else window


def _last_running(states: Table, ended_ns: int) -> int:
    """The newest sample that found a process running, or its ending if there is none."""
    times = states.ints("ts_ns")
    before = times[times < ended_ns]
    return int(before.max()) if before.size else ended_ns


def _ending(states: Table) -> int | None:
    """Since when a process has been stopped for good, or None; given its `proc_stopped` samples."""
    times, halted = states.ints("ts_ns"), states.floats("value") >= STOPPED
    if not halted[times == times.max()].any():
        return None
    return stopped_since(times, np.ones(len(times), np.bool_), halted)


def observed_before(window: Window, until_ns: int) -> Window:
    """The window as it was before this moment, without later samples of processes."""
    tables = dict(window.tables)
    for name, time in (("hardware", "ts_ns"), ("stacks", "start_ns")):
        table = window.table(name)
        if table is not None:
            tables[name] = table.take(table.ints(time) < until_ns)
    return replace(window, tables=tables)
