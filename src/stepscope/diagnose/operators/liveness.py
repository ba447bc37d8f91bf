"""Signs of life of ranks: which are stopped, busy, idle or silent, and how far recording got; and
how long ranks may wait for one before the job counts as hung.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.operators.exits import read_exits
from stepscope.diagnose.prepare.clean import TIMES
from stepscope.diagnose.views.frames import NEVER_COMPILED
from stepscope.diagnose.views.stack_rows import in_training
from stepscope.window import NULL, Floats, Ints, Mask, Table, Window

Activity = Literal["stopped", "ended", "gone", "idle", "saving", "active", "unknown"]
"""Ended: its process is known to have ended by itself. Gone: nobody samples it any more."""

SILENT_NS = 60 * 10**9
"""A host whose newest row is this much older than the newest of all hosts has gone silent and does
not count. Our simulator."""
IDLE_CORES = 0.05
"""A process that uses less than a twentieth of a core makes no progress; a waiting process still
polls now and then. Our simulator."""
STOPPED = 0.5
"""Samples of `proc_stopped` are 0 or 1; at least this means stopped."""
SAVING = (
    "save", "checkpoint", "state_dict", "serializ", "evaluat", "validat", "compile", "inductor",
    "dynamo", "push_to_hub", "upload",
)  # fmt: skip
"""Words in function names of work for which the other ranks wait by design. Our simulator."""
EXPECTED_NS = 10**9
"""Assumed step time of a job without recorded steps. The thresholds that use it have floors. Our
simulator."""
INFERRED = ("steps_blocked",)
"""Metrics that a processor infers because a rank sent nothing; it did not look at the process."""
SAMPLED_NS = 2 * 10**9
"""Processes are sampled once a second at least: after two, somebody else's samples are later."""
OF_PROCESSES = ("cpu_util", "proc_stopped")
"""Metrics that are read from a process, and only as long as it is there."""
GONE = 3.0
"""A process is gone if it was sampled no more for three times the longest gap between the samples
of another one of its host, which go on: one or two may be missed. Our choice."""
LEAST_SAMPLES = 4
"""Of fewer samples nothing shows how far apart they are. Statistics."""
PROGRESS = ("steps", "phases", "comm_ops", "kernels", "kernel_summaries")
"""Tables whose rows show that a rank's step goes on."""
WARM_UP = 3
"""The first gaps between steps contain compilation and loading and do not count. Our simulator."""
IDLE_STEPS, IDLE_NS = 2.0, 5 * 10**9
"""Timeout for an idle rank. VenusTrace, section 3.3: n = 2. The floor covers one or two missed
samples in a job with short steps. Paper."""
BUSY_STEPS, BUSY_NS = 5.0, 10 * 10**9
"""Timeout for a busy rank. EROICA, section 4.1: five step times. The floor covers evaluation and
compilation. Paper."""
SAVING_NS = 120 * 10**9
"""Timeout for a rank that saves, evaluates or compiles: two minutes, because writing a large
checkpoint takes that long. Our simulator."""
LONGER_PAUSE = 1.5
"""The timeout is at least 1.5 times the longest pause between steps so far. Our simulator."""
CALLS_STEPS, CALLS_NS = 10.0, 30 * 10**9
"""Timeout if only calls are known and all ranks made the same: twice and three times that of a
busy rank, because long work of all devices looks alike. Our simulator."""
STARTING_NS = 300 * 10**9
"""Before the first step, one rank may download, tokenise or compile while the others wait for it:
five minutes. Our simulator."""


def now_ns(window: Window) -> int | None:
    """The time until which all hosts were recorded: `observed_until_ns`, else the newest row of the
    host that is furthest behind."""
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
    """The host of each row: its own `host` column, or the host of its rank."""
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
class StepTiming:
    """The job's typical step time, its longest gap between steps, and the end of its last step."""

    step_ns: float
    longest_gap_ns: float
    last_end_ns: int | None
    started: bool = True
    """Whether a step ever finished; also true if that was not recorded."""


def step_timing(window: Window) -> StepTiming:
    """Step timing from finished steps, or from operators if no steps were recorded."""
    steps, comm = window.table("steps"), window.table("comm_ops")
    if steps is not None and steps.has("step"):
        ends = _last_of_each(steps.ints("step"), steps.ints("start_ns") + steps.ints("duration_ns"))
        usual_ns = stats.median(steps.floats("duration_ns"))
        most_ns = _outstanding_ns(comm, np.unique(steps.ints("step")))
        return _timing(ends, int(ends.max()), usual_ns, most_ns)
    last = None
    if comm is not None and comm.knows("end_ns"):
        last = int(comm.ints("end_ns").max())
    calls = np.zeros(0, np.int64)
    if comm is not None and comm.has("step", "enqueue_ns"):
        numbered = comm.take((comm.ints("step") >= 0) & (comm.ints("enqueue_ns") != NULL))
        calls = _last_of_each(numbered.ints("step"), numbered.ints("enqueue_ns"))[:-1]
    if calls.size > WARM_UP:  # the newest step may not have finished
        return _timing(calls, last)
    return StepTiming(EXPECTED_NS, 0.0, last, started=window.table("hardware") is None)


def _timing(
    ends: Ints, last: int | None, usual_ns: float = 0.0, most_ns: Floats | float = np.inf
) -> StepTiming:
    """By when steps ended, in their order; pauses between them count up to `most_ns`."""
    gaps = np.diff(ends).astype(np.float64)
    pauses = np.minimum(gaps, most_ns)[gaps > 0]
    typical = stats.median(gaps[gaps > 0]) or usual_ns or EXPECTED_NS
    return StepTiming(typical, float(pauses[WARM_UP:].max(initial=0.0)), last)


def _outstanding_ns(comm: Table | None, steps: Ints) -> Floats | float:
    """How long operators were outstanding at most, for each pause between two steps whose operators
    were recorded. No rank waits in one while the job is stopped and started again."""
    if comm is None or not comm.knows("end_ns") or not comm.has("step"):
        return np.inf
    called = comm.ints("enqueue_ns" if comm.knows("enqueue_ns") else "start_ns")
    known = (called != NULL) & (comm.ints("end_ns") != NULL)
    longest = (comm.ints("end_ns") - called)[known].max(initial=0)
    recorded = np.isin(steps, comm.ints("step"))
    return np.where(recorded[:-1] & recorded[1:], float(longest), np.inf)


def _last_of_each(step: Ints, times: Ints) -> Ints:
    """The last time of each step, in order of steps."""
    number, index = np.unique(step, return_inverse=True)
    last = np.full(number.size, NULL)
    np.maximum.at(last, index, times)
    return last


@dataclass(frozen=True)
class LifeSigns:
    """Signs of life of one rank after a given time."""

    activity: Activity
    alive_ns: int | None
    """Newest sample in which the process was alive; None if there are no samples."""
    stack: tuple[str, ...]
    stopped_ns: int | None = None
    """The first of the uninterrupted samples that found it stopped; None if it is not stopped."""


class Liveness:
    """Signs of life of any rank after a given time.

    The tables are split by rank once: if each of ten thousand waiting ranks scanned all rows, that
    would take hours.
    """

    def __init__(self, window: Window, since_ns: int) -> None:
        self._window, self._since_ns = window, since_ns
        self._signs: dict[int, LifeSigns] = {}

    def of(self, rank: int) -> LifeSigns:
        """What a rank has done since the others began to wait for it."""
        if rank not in self._signs:
            tables = {name: ranks[rank] for name, ranks in self._by_rank.items() if rank in ranks}
            alone = replace(self._window, tables=tables)
            self._signs[rank] = self._with_end(rank, _signs_of(alone, rank, self._since_ns))
        return self._signs[rank]

    def _with_end(self, rank: int, signs: LifeSigns) -> LifeSigns:
        """The same of a process that is no more: where it was sampled last, it is no longer."""
        if signs.activity == "stopped":
            return signs
        if rank in self._ended:
            return LifeSigns("ended", signs.alive_ns, ())
        return LifeSigns("gone", signs.alive_ns, ()) if self._is_gone(rank) else signs

    @cached_property
    def _ended(self) -> frozenset[int]:
        """Ranks whose processes ended by themselves and without an error."""
        return frozenset(one.rank for one in read_exits(self._window) if one.is_normal)

    def _is_gone(self, rank: int) -> bool:
        """Whether a process was sampled no more after the others began to wait for it, although
        others of its host were."""
        own, beside = self._sampled.get(rank), self._sampled_beside(rank)
        if own is None or beside.size < LEAST_SAMPLES:
            return False
        newest, gap = int(own[-1]), int(np.diff(beside).max())
        silent = int(beside[-1]) - newest
        was_there = newest > self._since_ns + gap
        lost = (_losses_ns(self._window, "hardware") or NULL) > newest
        return silent > max(SAMPLED_NS, GONE * gap) and not was_there and not lost

    def _sampled_beside(self, rank: int) -> Ints:
        """When the other process of the rank's host was sampled that was sampled last; or the host
        itself, if there is no other."""
        host = self._window.host_of(rank)
        last = [(time, other) for time, other in self._newest.get(host, ()) if other != rank]
        if last:
            return self._sampled[max(last)[1]]
        hardware = self._window.table("hardware")
        if hardware is None or host is None or not hardware.has("host"):
            return np.zeros(0, np.int64)
        whole = (hardware.ints("rank") < 0) & hardware.strings("host").equals(host)
        return np.unique(hardware.ints("ts_ns")[whole])

    @cached_property
    def _newest(self) -> dict[str | None, list[tuple[int, int]]]:
        """By host, the two processes that were sampled last: when, and of which rank."""
        found: dict[str | None, list[tuple[int, int]]] = {}
        for rank, times in self._sampled.items():
            if rank >= 0:
                found.setdefault(self._window.host_of(rank), []).append((int(times[-1]), rank))
        return {host: sorted(last)[-2:] for host, last in found.items()}

    @cached_property
    def _sampled(self) -> dict[int, Ints]:
        """When each process was sampled."""
        hardware = self._window.table("hardware")
        if hardware is None:
            return {}
        samples = hardware.take(hardware.strings("metric").equals(*OF_PROCESSES))
        return {rank: np.unique(own.ints("ts_ns")) for rank, own in samples.per_rank()}

    def sampled_after(self, time_ns: int) -> bool:
        """Whether counters, of hosts or processes, were still read well after this moment."""
        hardware = self._window.table("hardware")
        if hardware is None:
            return False
        seen = ~hardware.strings("metric").equals(*INFERRED)
        newest = int(hardware.ints("ts_ns")[seen].max(initial=NULL))
        return newest > time_ns + SAMPLED_NS

    @cached_property
    def _by_rank(self) -> dict[str, dict[int, Table]]:
        """The tables with signs of life, split by rank."""
        tables = self._window.tables
        return {name: dict(tables[name].per_rank())
                for name in ("hardware", "stacks") if name in tables}  # fmt: skip


def _signs_of(window: Window, rank: int, since_ns: int) -> LifeSigns:
    stack = lasting_stack(window, rank)
    hardware = window.table("hardware")
    if hardware is None:
        return LifeSigns("saving" if is_saving(stack) else "unknown", None, stack)
    own = hardware.ints("rank") == rank
    alive, stopped_ns = _alive(hardware, own)
    if stopped_ns is not None:
        return LifeSigns("stopped", alive, stack, stopped_ns)
    if is_saving(stack):
        return LifeSigns("saving", alive, stack)
    recent = own & hardware.strings("metric").equals("cpu_util")
    recent &= hardware.ints("ts_ns") > since_ns
    cores = hardware.floats("value")[recent]
    if not cores.size:
        return LifeSigns("unknown", alive, stack)
    return LifeSigns("idle" if float(np.median(cores)) < IDLE_CORES else "active", alive, stack)


def _alive(hardware: Table, own: Mask) -> tuple[int | None, int | None]:
    """The newest sample in which the process was not stopped; and since when it has been stopped,
    if the newest sample of all says so."""
    times = hardware.ints("ts_ns")
    state = own & hardware.strings("metric").equals("proc_stopped")
    halted = state & (hardware.floats("value") >= STOPPED)
    observed = own & ~hardware.strings("metric").equals("proc_stopped", *INFERRED)
    alive = observed | (state & ~halted)
    newest = int(times[state].max()) if state.any() else None
    stopped = newest is not None and bool(halted[state & (times == newest)].any())
    since = stopped_since(times, state, halted) if stopped else None
    if since is not None:
        alive &= times < since
    return (int(times[alive].max()) if alive.any() else None), since


def last_alive_ns(window: Window) -> int | None:
    """When a process of any rank was last sampled alive, by counters or by its stack."""
    times = []
    if (hardware := window.table("hardware")) is not None:
        metric = hardware.strings("metric")
        halted = metric.equals("proc_stopped") & (hardware.floats("value") >= STOPPED)
        seen = (hardware.ints("rank") >= 0) & ~halted & ~metric.equals(*INFERRED)
        times += [hardware.ints("ts_ns")[seen]]
    if (stacks := window.table("stacks")) is not None:
        times += [stacks.ints("start_ns") + stacks.ints("duration_ns")]
    newest = max((int(one.max()) for one in times if one.size), default=NULL)
    return None if newest == NULL else newest


def watched_until_ns(window: Window) -> int | None:
    """Until when recorders are known to have watched without seeing progress; None if none did.

    Processes that are sampled no more may have ended, and samples of hosts go on without them.
    """
    hardware, newest = window.table("hardware"), now_ns(window)
    alive = last_alive_ns(window)
    if hardware is not None and (hardware.ints("rank") >= 0).any():
        until = alive if newest is None or alive is None else min(alive, newest)
    elif window.job.observed_until_ns is not None:
        until = window.job.observed_until_ns
    else:
        until = max((time for time in (alive, _losses_ns(window)) if time is not None),
                    default=None)  # fmt: skip
    exits = window.table("exits")
    if until is None or exits is None or not len(exits):
        return until
    return min(until, int(exits.ints("ts_ns").min()))


def _losses_ns(window: Window, *tables: str) -> int | None:
    """When the newest loss of rows ended: of these tables, or of those that show no progress."""
    losses = window.table("losses")
    if losses is None:
        return None
    wanted = losses.strings("table").equals(*(tables or PROGRESS))
    times = losses.ints("end_ns")[wanted if tables else ~wanted]
    return int(times.max()) if times.size else None


def last_progress_ns(window: Window) -> int:
    """When any rank last did something that shows progress: a call, a phase, a kernel. Lost rows of
    these may have shown it, too."""
    newest = _losses_ns(window, *PROGRESS) or NULL
    for name in PROGRESS:
        table = window.table(name)
        if table is None or not len(table):
            continue
        for column in ("enqueue_ns", "start_ns", "end_ns", "window_start_ns"):
            if table.has(column):
                newest = max(newest, int(table.ints(column).max()))
        if table.has("start_ns", "duration_ns"):
            newest = max(newest, int((table.ints("start_ns") + table.ints("duration_ns")).max()))
    return newest


def stopped_since(times: Ints, state: Mask, halted: Mask) -> int:
    """Since when every sample found the process stopped. A rank whose process was replaced by
    another one may have both states at the same time."""
    running = state & ~halted
    after = int(times[running].max()) if running.any() else NULL
    return int(times[halted & (times >= after)].min())


def lasting_stack(window: Window, rank: int) -> tuple[str, ...]:
    """The sampled stack in which a rank's training thread stood longest since the job's last
    progress, outermost first; the newest where none lasted.

    Whoever ends a stuck job sees its processes clean up last, and that says nothing of the hang.
    """
    table = window.table("stacks")
    if table is None:
        return ()
    own = table.take(table.ints("rank") == rank)
    own = own.take(in_training(own))
    if not len(own):
        return ()
    begin, frames = own.ints("start_ns"), own.strings("frames")
    end = begin + own.ints("duration_ns")
    stood = np.clip(end - np.maximum(begin, last_progress_ns(window)), 0, None)
    longest = stats.sums(frames.codes.astype(np.int64) + 1, stood, len(frames.values) + 1)
    chosen = int(longest.argmax()) - 1 if stood.any() else int(frames.codes[end.argmax()])
    return tuple(frames.values[chosen].split(";")) if chosen >= 0 else ()


def is_saving(stack: tuple[str, ...]) -> bool:
    """Whether a function on the stack is work that other ranks wait for by design."""
    names = [frame.split(" (", 1)[0].lower() for frame in stack]
    return any(word in name for name in names if NEVER_COMPILED not in name for word in SAVING)


def allowed_ns(activity: Activity, timing: StepTiming) -> float:
    """How long others may wait for a rank with this activity before it counts as a hang."""
    pause = LONGER_PAUSE * timing.longest_gap_ns if timing.started else STARTING_NS
    if activity == "idle":
        return max(IDLE_STEPS * timing.step_ns, IDLE_NS, pause)
    if activity == "saving":
        return max(BUSY_STEPS * timing.step_ns, SAVING_NS, pause)
    return max(BUSY_STEPS * timing.step_ns, BUSY_NS, pause)


def allowed_of_all_ns(timing: StepTiming) -> float:
    """The same if no rank is known to be behind: all of them may be doing the same long work."""
    return max(CALLS_STEPS * timing.step_ns, CALLS_NS, LONGER_PAUSE * timing.longest_gap_ns)
