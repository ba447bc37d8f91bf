"""When the processes of a stuck job ended, and what had been observed until then.

A stuck job gets killed, at once or rank by rank. In the end all ranks are stopped or dead, and only
what was observed before distinguishes the culprit from those that waited for it. So a hang is first
judged as of the moment before any process stopped, then by which of them stopped first. Where the
ends of processes are known (`exits`), a job of which nobody lives on was over with the first of
them: what recorders saw afterwards is no hang.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from stepscope.diagnose.operators.exits import read_exits
from stepscope.diagnose.operators.liveness import INFERRED, STOPPED, stopped_since
from stepscope.window import NULL, Table, Window

TOGETHER_NS = 10**9
"""Processes that stop within a second of each other stop together: processes are sampled once a
second. Our simulator."""


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


def until_it_ended(window: Window) -> Window:
    """The window as it was when the first process ended badly, if none outlived that.

    A process that did its work before the others is no reason for their end.
    """
    ends = read_exits(window)
    first = next((one for one in ends if not one.is_normal), ends[0] if ends else None)
    if first is None or _lives_on(window, {one.rank for one in ends}, first.ts_ns):
        return window
    return as_of(window, first.ts_ns)


def _lives_on(window: Window, ended: Collection[int], since_ns: int) -> bool:
    """Whether a process whose end was not recorded was sampled well after this moment; if none was
    ever sampled, whether there is one."""
    rest = sorted(set(window.ranks) - set(ended))
    hardware = window.table("hardware")
    sampled = None if hardware is None else hardware.take(
        (hardware.ints("rank") >= 0) & ~hardware.strings("metric").equals(*INFERRED))  # fmt: skip
    if sampled is None or not len(sampled):
        return bool(rest)
    times = sampled.ints("ts_ns")[np.isin(sampled.ints("rank"), rest)]
    return bool((times > since_ns + TOGETHER_NS).any())


def as_of(window: Window, until_ns: int) -> Window:
    """The window as recorders would have left it at this moment."""
    tables = {name: _as_of(table, until_ns) for name, table in window.tables.items()}
    until = window.job.observed_until_ns
    job = window.job if until is None else replace(
        window.job, observed_until_ns=min(until, until_ns))  # fmt: skip
    known = {name: table for name, table in tables.items() if len(table)}
    return replace(window, job=job, tables=known)


def _as_of(table: Table, until_ns: int) -> Table:
    """The rows that were written by then: of operators and stacks those that had begun, of anything
    else those that had ended."""
    known = np.ones(len(table), np.bool_)
    for name in filter(table.has, ("ts_ns", "enqueue_ns")):
        known &= table.ints(name) < until_ns
    if table.has("start_ns", "duration_ns"):
        lasted, begun = table.ints("duration_ns"), table.ints("start_ns")
        if table.has("frames"):
            table = table.with_column("duration_ns", np.minimum(lasted, until_ns - begun))
            return table.take(known & (begun < until_ns))
        return table.take(known & (begun + lasted <= until_ns))
    for name in ("start_ns", "end_ns"):
        if table.has(name):
            times = table.ints(name)
            table = table.with_column(name, np.where(times <= until_ns, times, NULL))
    return table.take(known)
