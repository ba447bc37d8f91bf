"""Why a job in which nothing was found is not called healthy.

Too little was recorded to account for its time, or time is lost that nothing explains. Contract,
section 4.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from stepscope.diagnose.account.absent import unrecorded_ranks
from stepscope.diagnose.account.idle_devices import device_ns
from stepscope.diagnose.account.waste import by_all
from stepscope.diagnose.decide.unseen import meeting_absent, waiting_for_absent
from stepscope.diagnose.decide.waits_known import connects
from stepscope.diagnose.detect.steps.step_time import sudden
from stepscope.diagnose.detect.stuck import desync
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.shown import Ledger
from stepscope.diagnose.thresholds import FAST, HALF, OTHER_PROCESSES
from stepscope.diagnose.views.own_time import OBSERVED
from stepscope.diagnose.views.timeline import LEAST_FASTER
from stepscope.diagnose.views.unnamed import GAPS, OUTSIDE, is_staged
from stepscope.diagnose.words.numbers import percent

FEW_STEPS = 10
"""In fewer steps no change of the step time stands out from noise. Statistics (`step_time`)."""
OF_A_QUARTILE = 4
"""Fewer steps have no lower quartile, above which time is unexplained. Statistics."""
MOST_UNEXPLAINED = 0.1
"""A job that loses more than this to an unknown cause is not called healthy. Contract."""

OF_KERNELS = ", and kernels alone do not show how long a step takes"
"""Nothing accounts for idle devices then, nor for transfers that are slow on all ranks."""


def undecided(job: Observed, known: Ledger | None) -> str:
    """Why a job in which nothing was found is not healthy; empty if it is."""
    return (_unaccounted(job) or _between_roles(job)
            or waiting_for_absent(job, (), MOST_UNEXPLAINED)
            or meeting_absent(job, MOST_UNEXPLAINED) or _in_no_phase(job)
            or _unexplained(job, known) or _too_brief(job) or _idle_devices(job)
            or _waiting_for_others(job))  # fmt: skip


def _unaccounted(job: Observed) -> str:
    """Why a job in which nothing was found may not be called healthy; empty where it may."""
    if desync.applies(job.window):
        return desync.undecided(job.window)
    if not len(job.line.steps):
        return "no steps were recorded" + (OF_KERNELS if job.kernels is not None else "")
    judged = len(job.line.steps) - job.line.warm_up
    if judged < FEW_STEPS and not job.line.is_trace:
        return f"too few steps to judge ({judged}), and whether earlier ones were faster is unknown"
    if not job.own.phases:
        return _without_own_time(job)
    return _hidden(job)


def _without_own_time(job: Observed) -> str:
    """Why it is not known what ranks did themselves."""
    if job.own.hidden:
        hidden = ", ".join(sorted(job.own.hidden_phases))
        return f"how long ranks waited in {hidden} was not measured, and nothing else is known"
    why = next((one.why for one in job.own.skipped if one.method == "own time"), "")
    if why and (job.window.table("comm_ops") is not None or job.window.table("phases") is not None):
        return f"waiting cannot be distinguished from work: {why}"
    return "only the length of its steps is known, so waiting cannot be distinguished from work"


def _hidden(job: Observed) -> str:
    """The same for a job whose steps consist mostly of phases with waiting that was not
    measured."""
    comm = job.window.table("comm_ops")
    one_by_one = job.window.table("kernels") is not None
    if not job.own.hidden or one_by_one or (comm is not None and comm.has("end_ns")):
        return ""
    period = job.line.job_period_ns[job.line.warm_up :]
    known = stats.median(job.total[:, job.line.warm_up :]) / max(stats.median(period), 1.0)
    if job.device_busy is not None:
        known = max(known, stats.median(job.device_busy))
    if known >= HALF:
        return ""
    return f"{percent(1 - known)} of a step may be waiting, which nobody measured"


def _between_roles(job: Observed) -> str:
    """The same for a job whose ranks have several roles and mostly wait, where nobody recorded for
    whom: a slow rank of one role then looks like the program of the others."""
    if not len(job.line.steps) or not job.has_roles:
        return ""
    if job.graph is not None and connects(job, job.graph):
        return ""
    period = np.where(job.line.period_ns > 0, job.line.period_ns, np.nan)
    known = stats.median((job.total / period)[:, job.line.warm_up :])
    if known >= HALF:
        return ""
    return (
        f"ranks of {len(job.roles)} roles wait for each other for {percent(1 - known)} of a "
        "step, and nothing recorded shows for whom"
    )


def _in_no_phase(job: Observed) -> str:
    """The same for a job of which some ranks were recorded, all of which spend much of each step in
    no phase, and nothing else shows for whom or what."""
    if not unrecorded_ranks(job) or any(job.window.table(name) is not None for name in OBSERVED):
        return ""
    spent = [by_all(own) for phase, own in job.own.items() if phase in (GAPS, OUTSIDE)]
    part = stats.median(sum(spent, np.zeros(1)) / np.maximum(job.line.job_period_ns, 1.0))
    if not part > MOST_UNEXPLAINED:
        return ""
    return (f"all recorded ranks spend {percent(part)} of a step in no phase, and may wait there "
            "for ranks that were not recorded")  # fmt: skip


def _unexplained(job: Observed, known: Ledger | None) -> str:
    """The same for a job of which enough was recorded, but which loses too much time to an unknown
    cause: more than the scatter of steps, above its own lower quartile.

    Of steps in a row, or of all: a drift widens the one, and long steps every third time the other.
    Of a few steps the first ones may be long because the job has just begun.
    """
    period = job.period_ns[job.line.warm_up :]
    if known is None or period.size < OF_A_QUARTILE:
        return ""
    half = period.size // 2
    if period.size < FEW_STEPS and stats.median(period[:half]) > stats.median(period[half:]):
        return ""
    scatter = min(stats.sigma(np.diff(period)) / np.sqrt(2), stats.sigma(period))
    scatter /= max(known.step_ns, 1)
    lost = known.unexplained_fraction
    if lost <= MOST_UNEXPLAINED + NormalDist().inv_cdf(1 - FAST) * scatter:
        return ""
    said = f"{percent(lost)} of the step time is lost, and nothing recorded explains it"
    used = job.hardware("stranger_cpu_util", job.line.warm_up, len(job.line.steps))
    if np.isfinite(used).any() and (cores := stats.median(used)) >= OTHER_PROCESSES:
        said += f"; meanwhile other processes use {cores:.1f} cores of the ranks' processors"
    return said


def _too_brief(job: Observed) -> str:
    """The same for a job whose steps became much longer, with too few steps before or after it."""
    skip, steps = job.line.warm_up, job.line.steps
    change = sudden(job.period_ns[skip:], LEAST_FASTER)
    if change is None:
        return ""
    after = len(steps) - skip - change.split
    if (1 - 1 / change.ratio) * after <= MOST_UNEXPLAINED * (len(steps) - skip):
        return ""
    few = min(change.split, after)
    return (
        f"steps take {change.ratio:.2f} times as long from step {steps[skip + change.split]}, but "
        f"only {few} steps {'before' if few == change.split else 'after'} that were recorded"
    )


def _idle_devices(job: Observed) -> str:
    """The same for a job whose devices all wait for their hosts for too much of each step."""
    if not job.line.is_trace or job.window.table("kernels") is None:
        return ""
    skip = job.line.warm_up
    waits = by_all(device_ns(job, "host_wait_ns"))[skip:]
    part = stats.median(waits / np.maximum(job.line.job_period_ns[skip:], 1.0))
    if not part > MOST_UNEXPLAINED:
        return ""
    return (f"devices idle for {percent(part)} of each step until hosts launch more: nothing shows "
            "whether hosts are late, or work is too small for the devices")  # fmt: skip


def _waiting_for_others(job: Observed) -> str:
    """The same for a job whose ranks wait for each other for too much of each step, whoever is
    last: what the median rank communicates for longer than the one that does so least is waiting,
    where all do the same."""
    kernels = job.window.table("kernels")
    if not job.line.is_trace or kernels is None or is_staged(job.window):
        return ""
    skip = job.line.warm_up
    exposed = device_ns(job, "exposed_ns")[:, skip:]
    waits = stats.column_median(exposed) - by_all(exposed)
    part = stats.median(waits / np.maximum(job.line.job_period_ns[skip:], 1.0))
    if not part > MOST_UNEXPLAINED:
        return ""
    return (f"ranks wait for each other for {percent(part)} of each step, and none of them is "
            "clearly the one that the others wait for")  # fmt: skip
