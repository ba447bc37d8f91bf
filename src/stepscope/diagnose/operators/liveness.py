"""What is known of ranks right now: how far recording got, who is stopped, busy, idle or silent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.prepare.clean import TIMES
from stepscope.window import NULL, Ints, Mask, Table, Window

Doing = Literal["stopped", "idle", "saving", "active", "unknown"]

SILENT_NS = 60 * 10**9
"""A host so far behind the newest one has itself gone silent; the others need not wait for it."""
IDLE_CORES = 0.05
"""Below a twentieth of a core a process makes no progress; a waiting one polls now and then."""
STOPPED = 0.5
SAVING = (
    "save", "checkpoint", "state_dict", "serializ", "evaluat", "validat", "compile", "inductor",
    "dynamo", "push_to_hub", "upload",
)  # fmt: skip
"""Words in function names of work that one rank does while the others rightly wait for it."""
EXPECTED_NS = 10**9
"""The step time of a job whose steps nobody recorded, for thresholds that have floors anyway."""
NO_LOOK = ("steps_blocked",)
"""What a processor says of a rank because nothing came from it, not because it looked at it."""
WARM_UP = 3
"""First periods compile and load; they tell nothing of how long this job pauses."""


def now_ns(window: Window) -> int | None:
    """How far the recorders of all hosts had looked: `observed_until_ns`, else the least newest."""
    if window.job.observed_until_ns is not None:
        return window.job.observed_until_ns
    newest = [time for time in _newest_by_host(window).values() if time > NULL]
    if not newest:
        return None
    return min(time for time in newest if time >= max(newest) - SILENT_NS)


def _newest_by_host(window: Window) -> dict[str, int]:
    newest: dict[str, int] = {}
    for table in window.tables.values():
        if not len(table):
            continue
        owners, index = _owners(window, table)
        last = np.full(len(owners), NULL)
        np.maximum.at(last, index, _last_times(table))
        for host, time in zip(owners, last, strict=True):
            newest[host] = max(newest.get(host, NULL), int(time))
    return newest


def _owners(window: Window, table: Table) -> tuple[list[str], Ints]:
    """The host of each row: as the row says, or its rank's."""
    if table.has("host"):
        hosts = table.strings("host")
        codes, index = np.unique(hosts.codes, return_inverse=True)
        return [hosts.values[code] if code >= 0 else "" for code in codes], index
    ranks, index = np.unique(table.ints("rank"), return_inverse=True)
    return [window.host_of(int(rank)) or "" for rank in ranks], index


def _last_times(table: Table) -> Ints:
    columns = [table.ints(name) for name in TIMES if table.has(name)]
    if table.has("start_ns", "duration_ns"):
        columns.append(table.ints("start_ns") + table.ints("duration_ns"))
    return np.max(columns, axis=0) if columns else np.full(len(table), NULL)


@dataclass(frozen=True)
class Pace:
    """The job's expected step, its longest ordinary gap between steps, and its last step's end."""

    step_ns: float
    longest_ns: float
    last_end_ns: int | None
    started: bool = True
    """Whether a step was ever finished, as far as somebody watched for that."""


def pace(window: Window) -> Pace:
    """From finished steps, or from finished operators where no steps were recorded."""
    steps, comm = window.table("steps"), window.table("comm_ops")
    if steps is not None and steps.has("step"):
        begins, last = _step_ends(steps)
    elif comm is not None and comm.has("end_ns") and (comm.ints("end_ns") != NULL).any():
        last = int(comm.ints("end_ns").max())
        return Pace(EXPECTED_NS, 0.0, last, started=window.table("hardware") is None)
    else:
        return Pace(EXPECTED_NS, 0.0, None, started=window.table("hardware") is None)
    gaps = np.diff(begins).astype(np.float64)
    gaps = gaps[gaps > 0]
    typical = stats.median(gaps) or stats.median(steps.floats("duration_ns")) or EXPECTED_NS
    return Pace(typical, float(gaps[WARM_UP:].max(initial=0.0)), last)


def _step_ends(steps: Table) -> tuple[Ints, int]:
    """When each step was finished by the last rank to finish it, in order of steps."""
    number, index = np.unique(steps.ints("step"), return_inverse=True)
    ends = steps.ints("start_ns") + steps.ints("duration_ns")
    last = np.full(number.size, NULL)
    np.maximum.at(last, index, ends)
    return last, int(last.max())


@dataclass(frozen=True)
class Signs:
    """Signs of life of one rank since a moment."""

    doing: Doing
    seen_ns: int | None
    """Newest sample in which the process was alive; None where no samples are taken."""
    stack: tuple[str, ...]
    stopped_ns: int | None = None
    """Since when it has been found stopped, without a break; None of a rank that is not."""


class Watch:
    """Signs of life of any rank since a moment, without a look through the rows of all others.

    At ten thousand ranks of ten thousand waiting that would be hours.
    """

    def __init__(self, window: Window, since_ns: int) -> None:
        self._window, self._since_ns = window, since_ns
        self._seen: dict[int, Signs] = {}

    def of(self, rank: int) -> Signs:
        """What a rank has been doing since the others began to wait for it."""
        if rank not in self._seen:
            tables = {name: ranks[rank] for name, ranks in self._apart.items() if rank in ranks}
            alone = replace(self._window, tables=tables)
            self._seen[rank] = _signs_of(alone, rank, self._since_ns)
        return self._seen[rank]

    @cached_property
    def _apart(self) -> dict[str, dict[int, Table]]:
        """The tables that tell, by rank."""
        tables = self._window.tables
        return {name: dict(tables[name].per_rank())
                for name in ("hardware", "stacks") if name in tables}  # fmt: skip


def _signs_of(window: Window, rank: int, since_ns: int) -> Signs:
    stack = latest_stack(window, rank)
    hardware = window.table("hardware")
    if hardware is None:
        return Signs("saving" if saves(stack) else "unknown", None, stack)
    mine = hardware.ints("rank") == rank
    alive, stopped_ns = _alive(hardware, mine)
    if stopped_ns is not None:
        return Signs("stopped", alive, stack, stopped_ns)
    if saves(stack):
        return Signs("saving", alive, stack)
    recent = mine & hardware.strings("metric").equals("cpu_util")
    recent &= hardware.ints("ts_ns") > since_ns
    cores = hardware.floats("value")[recent]
    if not cores.size:
        return Signs("unknown", alive, stack)
    return Signs("idle" if float(np.median(cores)) < IDLE_CORES else "active", alive, stack)


def _alive(hardware: Table, mine: Mask) -> tuple[int | None, int | None]:
    """Newest sample that did not find the process stopped, and since when it is, if the very newest
    did."""
    times = hardware.ints("ts_ns")
    state = mine & hardware.strings("metric").equals("proc_stopped")
    halted = state & (hardware.floats("value") >= STOPPED)
    seen = mine & ~hardware.strings("metric").equals("proc_stopped", *NO_LOOK)
    alive = seen | (state & ~halted)
    newest = int(times[state].max()) if state.any() else None
    stopped = newest is not None and bool(halted[state & (times == newest)].any())
    halting = _halting(times, state, halted) if stopped else None
    if halting is not None:
        alive &= times < halting
    return (int(times[alive].max()) if alive.any() else None), halting


def _halting(times: Ints, state: Mask, halted: Mask) -> int:
    """Since when the process has been found stopped without a break; a rank of two processes, the
    one that left and the one that took its place, may be both at one moment."""
    running = state & ~halted
    after = int(times[running].max()) if running.any() else NULL
    return int(times[halted & (times >= after)].min())


def while_alive(window: Window, waiting: frozenset[int]) -> Window:
    """The window without what was seen after the first of the waiting ranks died.

    Somebody who finds a job stuck kills it: then all ranks are dead in the end, and only what was
    seen before tells the one that had stopped from those that waited for it.
    """
    hardware = window.table("hardware")
    if hardware is None or not waiting:
        return window
    states = hardware.take(hardware.strings("metric").equals("proc_stopped"))
    looked = dict(states.per_rank())
    ends = [_death(looked[rank]) for rank in waiting if rank in looked]
    if len(ends) < len(waiting) or None in ends:
        return window
    before = hardware.ints("ts_ns") < min(end for end in ends if end is not None)
    return replace(window, tables={**window.tables, "hardware": hardware.take(before)})


def _death(states: Table) -> int | None:
    """When a process was first found stopped for good, or None; given what was found of it."""
    times, halted = states.ints("ts_ns"), states.floats("value") >= STOPPED
    if not halted[times == times.max()].any():
        return None
    return _halting(times, np.ones(len(times), np.bool_), halted)


def latest_stack(window: Window, rank: int) -> tuple[str, ...]:
    """The newest sampled stack of a rank's main thread, outermost first."""
    table = window.table("stacks")
    if table is None:
        return ()
    mine = table.ints("rank") == rank
    main = mine & table.strings("thread").equals("MainThread")
    rows = np.flatnonzero(main if main.any() else mine)
    if not rows.size:
        return ()
    ends = table.ints("start_ns")[rows] + table.ints("duration_ns")[rows]
    frames = table.strings("frames")[int(rows[np.argmax(ends)])]
    return tuple(frames.split(";")) if frames else ()


def saves(stack: tuple[str, ...]) -> bool:
    """Whether some function on the stack is work that others rightly wait for."""
    names = [frame.split(" (", 1)[0].lower() for frame in stack]
    return any(word in name for name in names for word in SAVING)
