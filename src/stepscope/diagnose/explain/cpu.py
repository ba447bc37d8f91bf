"""What a rank's main thread did during its excess: computed, waited for a processor, or slept.

Fault: a host that computes more, or does not get the processor, or blocks.
Paper: ARGUS (2026), table 6, recognises CPU contention by "all phases of affected rank slow";
EROICA (2026), section 4, by utilisation.
What differs: the processor time of each phase and the scheduler's own account of waiting
(`run_delay`) are measured. Only the difference to the peers counts: on an oversubscribed host all
threads wait for a processor. Phases timed on a device have no processor time: there a host that
waits for a processor counts unless it still runs ahead of its device. Other processes show as use
of a rank's own processors, or as use of the whole host beyond that of the other hosts to which its
ranks do not add.
Cost: means over a range. Cannot see: time that a GPU takes.

How far a host runs ahead of its device shows which of the two waits for the other within one rank.
Fault: a host that is late, so that its device has nothing to do, as opposed to a slow device.
Paper: ARGUS (2026), section 9.4, sees host-side blocking by people looking at sparse launches.
What differs: a host that keeps ahead calls an operator long before its device comes to it; a late
host calls it when the device is already idle. So the mean time from call (`enqueue_ns`) to
beginning (`start_ns`), compared with the peers', shows which of the two is the bottleneck. Not the
median: where operators follow each other closely, half of them wait for their stream alone.
Cost: means over the operators of the ranks asked for.
Cannot see: jobs whose recorder knows the call only, or whose hosts never run ahead (gloo).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.explain.before_calls import before_calls
from stepscope.diagnose.finding import Cause, Evidence
from stepscope.diagnose.method import Explained, Needs
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed, once
from stepscope.diagnose.prepare.communication import loads
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import HALF, LEAST_COST, OTHER_PROCESSES, PROCESSOR_TIME
from stepscope.diagnose.views.unnamed import GAPS, OUTSIDE, UNNAMED
from stepscope.diagnose.words.numbers import percent
from stepscope.window import NULL, Floats, Ints

STARVED = 0.4
"""Part of the excess that must be waiting for a processor; sampling misses the rest. Our
simulator."""
STARVED_SHARE = 0.2
"""Share of all its time, beyond its peers, that a main thread must wait for a processor where it
was not recorded what the processor did instead. Kernels report a few hundredths where no other
process competes. Our simulator."""
CROWDED = 0.25
"""Share of all processors of the host, used beyond the other hosts': data loaders and daemons
differ by less between hosts of one job. Our simulator."""
SAME_USE = 1.5
"""Ranks that use this many times as much as elsewhere may fill their host themselves. Our
simulator."""
LATE = 0.25
"""A host with less than a quarter of its peers' head start is late. Of 40 simulated jobs of 64 and
128 ranks late ones have 0.02 to 0.18 left, and those with a slow device 0.97 and more. Our
simulator."""
LEAST_SHARE = 0.01
"""Share of the step: peers with a smaller head start show nothing. Our simulator."""


@dataclass(frozen=True)
class Use:
    """How a suspect spent its excess, as parts from 0 to 1; None if not measured."""

    computed: float | None
    starved: float | None
    other_processes: float | None
    """Cores that other processes use on the rank's processors."""
    waiting: float | None = None
    """Share of all its time that it waited for a processor, beyond its peers."""
    crowded: float | None = None
    """Share of the host's processors that processes outside the job use, beyond other hosts'."""
    ahead: float | None = None
    """The host's head start over its device, as a part of its peers'."""

    other_threads: float | None = None
    """Cores that its process uses beside its main thread, beyond its peers'."""
    moving: float | None = None
    """Share of all time that its threads that move data waited for a processor, likewise."""
    before_calls: float | None = None
    """Part of the excess before its host's calls, where its peers' hosts call at once."""

    @property
    def is_measured(self) -> bool:
        measured = (self.computed, self.starved, self.ahead, self.before_calls)
        return any(one is not None for one in measured)

    @property
    def has_other_processes(self) -> bool:
        """Whether other processes were observed on its processors."""
        return (self.other_processes or 0.0) >= OTHER_PROCESSES or (self.crowded or 0.0) >= CROWDED

    @property
    def is_starved(self) -> bool:
        """Whether it did no more than its peers and only waited for a processor. Where it shares
        one with other processes, computing takes longer, too: caches are cold."""
        if self.starved is None or self.starved < STARVED:
            return False
        if self.computed is not None:
            shares = self.has_other_processes and self.starved >= HALF
            return shares or self.computed < PROCESSOR_TIME
        return not self.keeps_ahead and (self.waiting or 0.0) >= STARVED_SHARE

    @property
    def keeps_ahead(self) -> bool:
        """Whether its device, and not its host, is known to be what is late."""
        if self.before_calls is not None:
            return self.before_calls < HALF
        return self.ahead is not None and self.ahead >= LATE

    @property
    def is_late(self) -> bool:
        """Whether its device is known to wait for its host."""
        known = (self.ahead, self.before_calls) != (None, None)
        return known and not self.keeps_ahead


class StarvedProcessor:
    """A main thread that waits for a processor, and computes no more than its peers do."""

    name = "starved-processor"
    causes: tuple[Cause, ...] = ("contention", "host")
    needs = Needs("hardware:run_delay")

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        use = use_of_excess(job, suspect)
        if not use.is_starved or loads(suspect.phase):
            return None
        rivals = (use.other_threads or 0.0) >= OTHER_PROCESSES
        cause: Cause = "contention" if use.has_other_processes and not rivals else "host"
        return Explained(
            cause, "measured", (_evidence(use),), use.starved, STARVED,
            whole_rank=suspect.inflated > 1, proven=True,
        )  # fmt: skip


def of_host(job: Observed, suspect: Suspect) -> bool:
    """Whether the excess is its host's time, so that its device cannot be the reason."""
    beside = suspect.phase in (GAPS, OUTSIDE) or loads(suspect.phase)
    return beside or use_of_excess(job, suspect).is_late


def processor_evidence(job: Observed, suspect: Suspect) -> tuple[Evidence, ...]:
    """Evidence on the suspect's use of its processor, if any was measured."""
    use = use_of_excess(job, suspect)
    return (_evidence(use),) if use.is_measured else ()


def _evidence(use: Use) -> Evidence:
    parts = []
    if use.computed is not None:
        parts.append(f"{percent(use.computed)} of the excess is processor time")
    if use.starved is not None:
        parts.append(f"{percent(use.starved)} is waiting for a processor beyond its peers'")
    if (use.moving or 0.0) >= LEAST_COST:
        parts.append(f"its threads that move data wait for one for {percent(use.moving or 0.0)} of "
                     "the time beyond its peers'")  # fmt: skip
    if use.other_processes is not None:
        parts.append(f"other processes use {use.other_processes:.1f} cores there")
    if (use.other_threads or 0.0) >= OTHER_PROCESSES:
        parts.append(f"its other threads use {use.other_threads:.1f} cores more than its peers'")
    if use.crowded is not None and use.has_other_processes:
        parts.append(f"{percent(use.crowded)} of its host is used by processes outside the job")
    if use.ahead is not None:
        parts.append(f"its host leads its device by {percent(use.ahead)} of the usual time")
    if use.before_calls is not None:
        parts.append(f"{percent(use.before_calls)} of the excess is before its host's calls")
    values = {"computed": use.computed, "starved": use.starved, "crowded": use.crowded,
              "other_processes": use.other_processes, "ahead": use.ahead,
              "transfers_starved": use.moving, "before_calls": use.before_calls}  # fmt: skip
    return Evidence("processor-use", "; ".join(parts), values)


@once
def use_of_excess(job: Observed, suspect: Suspect) -> Use:
    """How the suspect spent its excess over its peers."""
    waiting, moving = (
        _above_peers(job.hardware(metric, suspect.first, suspect.stop), suspect.row)
        for metric in ("run_delay", "comm_run_delay")
    )
    computed = _computed(job, suspect)
    return Use(
        computed, _starved(job, suspect, waiting, computed), _other_processes(job, suspect),
        waiting, _crowded(job, suspect), _ahead(job, suspect), _other_threads(job, suspect),
        moving, before_calls(job, suspect),
    )  # fmt: skip


def _computed(job: Observed, suspect: Suspect) -> float | None:
    if suspect.excess_ns <= 0:
        return None
    if suspect.phase in UNNAMED:
        return _used(job, suspect)
    # phases that a device timed have none, and that of others says nothing about them
    used = job.processor_in({*suspect.phases} & {*job.own.phases} or job.own.phases)
    if used is None:
        return None
    extra = used[suspect.row] - job.peer_median(used, suspect.phase, suspect.row)
    extra = extra[suspect.columns]
    if not np.isfinite(extra).any():
        return None
    if suspect.spikes:
        return float(np.nansum(extra)) / suspect.whole_ns
    return float(stats.block_means(extra[None], len(extra))[0, 0]) / suspect.excess_ns


def _used(job: Observed, suspect: Suspect) -> float | None:
    """The same for time in no phase, whose processor time is not recorded: by how much the whole
    process used beyond its peers. Peers that spin while they wait use more, and then nothing is
    known."""
    used = _above_peers(job.hardware("cpu_util", suspect.first, suspect.stop), suspect.row)
    if used is None or used <= 0:
        return None
    return _of_excess(job, suspect, used)


def _starved(
    job: Observed, suspect: Suspect, waiting: float | None, computed: float | None
) -> float | None:
    """Part of the excess in which it was runnable but not running, beyond its peers.

    On a crowded host whoever computes waits: what its peers wait for as much computing is left out.
    """
    if waiting is None or suspect.excess_ns <= 0:
        return None
    usual = _wait_of_peers(job, suspect) * max(computed or 0.0, 0.0)
    return max(_of_excess(job, suspect, waiting) - usual, 0.0)


def _wait_of_peers(job: Observed, suspect: Suspect) -> float:
    """How long peers wait for a processor, per time on it; 0 where it is not known."""
    waited, used = (np.delete(job.hardware(metric, suspect.first, suspect.stop), suspect.row)
                    for metric in ("run_delay", "cpu_util"))  # fmt: skip
    known = np.isfinite(waited) & (used > 0)
    return stats.median(waited[known] / used[known]) if known.any() else 0.0


def _of_excess(job: Observed, suspect: Suspect, share: float) -> float:
    """Converts a share of all time to a part of the excess."""
    begin, end = job.line.span_ns(suspect.first, suspect.stop)
    return share * (end - begin) / (suspect.stop - suspect.first) / suspect.excess_ns


def _above_peers(values: Floats, row: int) -> float | None:
    others = np.delete(values, row)
    if not np.isfinite(values[row]) or not np.isfinite(others).any():
        return None
    return float(values[row]) - stats.median(others)


def _other_processes(job: Observed, suspect: Suspect) -> float | None:
    value = float(job.hardware("stranger_cpu_util", suspect.first, suspect.stop)[suspect.row])
    return value if np.isfinite(value) else None


def _other_threads(job: Observed, suspect: Suspect) -> float | None:
    """A thread that computes beside the main one, as one that prefetches, is a rival of its own for
    the processor and for the GIL."""
    if job.processor is None:
        return None
    inside = slice(suspect.first, suspect.stop)
    lasted = np.nansum(job.line.period_ns[:, inside], axis=1)
    main = np.nansum(job.processor[:, inside], axis=1) / np.maximum(lasted, 1.0)
    used = job.hardware("cpu_util", suspect.first, suspect.stop)
    return _above_peers(np.maximum(used - main, 0.0), suspect.row)


def _crowded(job: Observed, suspect: Suspect) -> float | None:
    """The share of its host in use beyond other hosts', unless its own ranks use more."""
    use = job.of_hosts("cpu_util", suspect.first, suspect.stop)
    own = job.window.host_of(int(job.line.ranks[suspect.row]))
    others = [value for host, value in use.items() if host != own]
    if own not in use or not others:
        return None
    cores = job.hardware("cpu_util", suspect.first, suspect.stop)
    if cores[suspect.row] > SAME_USE * stats.median(cores):
        return None
    return use[own] - stats.median(np.array(others))


def _ahead(job: Observed, suspect: Suspect) -> float | None:
    """The head start of the suspect's host over its peers'; None where unknown."""
    peers, span = job.peers_of(suspect.row, suspect.phase), (suspect.first, suspect.stop)
    usual = _head_start_ns(job, peers, *span)
    if usual < max(LEAST_SHARE * job.line.typical_ns, 1.0):
        return None
    return _head_start_ns(job, np.array([suspect.row]), *span) / usual


def _head_start_ns(job: Observed, rows: Ints, first: int, stop: int) -> float:
    """Mean time from the host's call to the device's beginning; 0 where that was not recorded.

    More than a step does not count: a rank saved or evaluated in between.
    """
    comm = job.window.table("comm_ops")
    if comm is None or not comm.has("start_ns", "step"):
        return 0.0
    wanted = np.zeros(len(job.line.ranks) + 1, np.bool_)
    wanted[rows] = True  # and the last one, for ranks that are not on the grid, is not
    own = comm.take(np.flatnonzero(wanted[job.line.rows(comm.ints("rank"))]))
    begun, column = own.ints("start_ns"), job.line.columns(own.ints("step"))
    keep = (begun != NULL) & (column >= first) & (column < stop)
    ahead = np.minimum((begun - own.ints("enqueue_ns"))[keep], job.line.typical_ns)
    return float(ahead.mean()) if ahead.size else 0.0
