"""A rise of the step time that all ranks share: blame rule 6, code or configuration, not a rank.

Fault: a function, a phase, the network or the machines got slower for all ranks from some step on.
Paper: ARGUS (2026), L1 and case study 1, finds such a regression and leaves its cause to L4 and L5.
What differs: the rise is compared with what rose at the same time (`rise`). Pauses, a function in
the stacks of most ranks, communication that lost its overlap (`exposed`) and unequal work
(`uneven`) are direct evidence: they count however small the rise is, and where devices hide what
hosts do. Where all ranks take longer in phases that may contain waiting, these are named, without a
cause (`phases`). Where nothing was recorded that distinguishes code from a busy machine, only a
rise well beyond the noise is worth a verdict.
Cost: medians of arrays at hand. Cannot see: a job slow from the start (compare it: --baseline).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.account.absent import unrecorded_ranks, wait_ns
from stepscope.diagnose.detect.ranks.gc_pauses import collecting_function
from stepscope.diagnose.detect.regression.exposed import Exposed, longer_waited_for, newly_exposed
from stepscope.diagnose.detect.regression.grown_kernel import grown_kernel
from stepscope.diagnose.detect.regression.machines import are_others_there, are_several_at_once
from stepscope.diagnose.detect.regression.more_work import looks_like_fewer_ranks as fewer_ranks
from stepscope.diagnose.detect.regression.more_work import looks_like_more_work
from stepscope.diagnose.detect.regression.phase_jump import phase_jump
from stepscope.diagnose.detect.regression.phases import grown_phases
from stepscope.diagnose.detect.regression.rise import UNCHANGED, Rise, shared_rise
from stepscope.diagnose.detect.steps.gradual import Trend, gradual_rise, is_gradual
from stepscope.diagnose.detect.steps.stages import in_stages
from stepscope.diagnose.detect.steps.step_time import (
    LEAST_RISE,
    SLIGHT_RISE,
    StepChange,
    between_jobs,
    episode,
    is_brief,
    regression,
)
from stepscope.diagnose.detect.work.uneven import risen_excess_ns
from stepscope.diagnose.finding import Cause, Regression
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.network.devices import all_hosts
from stepscope.diagnose.network.on_devices import on_devices
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.communication import loads as is_loading
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import HALF, PROCESSOR_TIME, SUSPECT_SCORE
from stepscope.diagnose.views.frames import compiles, loads_data
from stepscope.diagnose.views.patterns import ENGINE
from stepscope.diagnose.views.stacks import Samples, SlowFunction, slower_than_before
from stepscope.diagnose.views.unnamed import UNNAMED
from stepscope.diagnose.words.numbers import percent
from stepscope.window import Floats, Mask

SHARED = 0.75
"""Part of the ranks that must show the rise in their own time for it to concern all. Our
simulator."""
UNEXPLAINED_RATIO = 2.0
"""A rise of everything at once without a measured reason is most often due to other jobs on a
shared machine: it is worth a verdict, with a low score, once steps double. Our simulator."""
OF_THE_JOB: tuple[Cause, ...] = ("code", "data_loading", "gc", "jit_compile", "load_imbalance")
"""Causes of a rise that ended again: a busy machine or network comes and goes by itself."""
OF_KERNEL = 0.7
"""How sure it is that a kernel is to blame which alone takes longer. Our choice, as of loading."""
GRADUAL_SCORE = 0.55
"""As sure as a cause that follows from what rose. Other jobs on a machine begin at once, and not on
several machines at one step; nothing that is not of this job and its machines makes steps longer
little by little. Our choice."""
BEYOND_NOISE = 1.5
"""Without direct evidence the rise must be so many standard deviations of a single step: shared
machines get slower by less whenever another job starts. Our simulator."""
BEYOND_USUAL = 3.0
"""A step is long by itself if it exceeds the median by the rise and by this many standard
deviations. Statistics: one step in 700."""


class SharedRegression:
    """A lasting rise of the step time that all ranks share, beyond what culprits cost."""

    name = "regression"
    needs = Needs("steps|phases|comm_ops|kernels", ranks=1)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Regression]:
        change, passed = _change_without(job, so_far.lost_ns), None
        if change is None:
            passed = _episode_without(job, so_far.lost_ns)
            if passed is not None:
                change, job = passed[0], job.until(passed[1])
            elif (change := _stages_without(job, so_far.lost_ns)) is None:
                trend = [*_gradual(job, so_far)]
                yield from trend
                change = None if trend else _own_without(job, so_far.lost_ns)
                if change is None:
                    return
        elif is_gradual(_healed(job, so_far.lost_ns)[job.line.warm_up :]):
            trend = [*_gradual(job, so_far)]
            yield from trend
            if trend:
                return
        if passed is None and _is_hidden(job, change.split, change, so_far.culprits):
            return
        named = {one.row for one in so_far.culprits}
        found = find_everyones(job, change, named)
        if found is not None and (passed is None or found.cause in OF_THE_JOB):
            yield found


def _change_without(job: Observed, lost_ns: Floats) -> StepChange | None:
    """The rise of the step times without what culprits cost."""
    skip, period = job.line.warm_up, _healed(job, lost_ns)
    change = regression(period[skip:], SLIGHT_RISE) or between_jobs(period, job.line.first_own)
    return None if change is None else replace(change, split=change.split + skip)


def _episode_without(job: Observed, lost_ns: Floats) -> tuple[StepChange, int] | None:
    """The same of a rise that ended again, and the column after its last."""
    skip = job.line.warm_up
    found = episode(_healed(job, lost_ns)[skip:])
    return found and (replace(found[0], split=found[0].split + skip), found[1] + skip)


def _stages_without(job: Observed, lost_ns: Floats) -> StepChange | None:
    """The same of a rise in two stages: each would be noise to the other, and both a trend."""
    skip = job.line.warm_up
    change = in_stages(_healed(job, lost_ns)[skip:])
    return None if change is None else replace(change, split=change.split + skip)


def _own_without(job: Observed, lost_ns: Floats) -> StepChange | None:
    """The same by what the typical rank does in its phases: where transfers scatter, step times do
    not show what all ranks take longer. They have to rise by half of that, or it is hidden."""
    skip, period = job.line.warm_up, _healed(job, lost_ns)
    named = [np.nan_to_num(own) for phase, own in job.own.items() if phase not in UNNAMED]
    own = stats.column_median(sum(named, np.zeros(job.line.shape)))
    if not (own > 0).any():
        return None
    own = np.where(own > 0, own, stats.median(own[own > 0]))  # unknown is no rise
    found = regression(job.work.levelled(job.cycle.levelled(own))[skip:], SLIGHT_RISE)
    if found is None:
        return None
    split, own_ns = found.split + skip, found.after_ns - found.before_ns
    before_ns = stats.median(period[skip:split])
    rise_ns = min(own_ns, stats.median(period[split:]) - before_ns)
    if rise_ns < max(HALF * own_ns, (SLIGHT_RISE - 1) * before_ns):
        return None
    return StepChange(split, 1 + rise_ns / before_ns, before_ns, before_ns + rise_ns, found.z)


def _gradual(job: Observed, so_far: SoFar) -> Iterator[Regression]:
    """The same of a rise that took many steps: its cause is what differs between its halves."""
    skip = job.line.warm_up
    trend = gradual_rise(_healed(job, so_far.lost_ns)[skip:])
    if trend is None or _is_hidden(job, trend.first + skip, trend, so_far.culprits):
        return
    named = {one.row for one in so_far.culprits}
    jump = phase_jump(job, trend)
    if jump is not None:
        yield from _at_once(job, jump, named)
        return
    split = (trend.first + trend.stop) // 2 + skip
    period = job.line.job_period_ns
    before_ns, after_ns = stats.median(period[skip:split]), stats.median(period[split:])
    change = StepChange(split, trend.ratio, before_ns, after_ns, trend.z)
    yield from (_over_time(job, found, trend, skip) for found in _at_once(job, change, named))


def _at_once(job: Observed, change: StepChange, named: Collection[int]) -> Iterator[Regression]:
    """The finding about a rise, by its cause or else as one of all ranks."""
    found, rise = find_everyones(job, change, named), shared_rise(job, change, named)
    if found is not None and found.score >= SUSPECT_SCORE:
        yield found
    elif _is_of_all(job, rise, change):
        yield _finding(job, change, rise, _Reason("unknown", GRADUAL_SCORE))


def _over_time(job: Observed, found: Regression, trend: Trend, skip: int) -> Regression:
    """The finding about a rise, with when it began and ended, and what it cost on the way."""
    line, first = job.line, trend.first + skip
    begin, end = line.span(first, trend.stop + skip)
    return replace(
        found, steps=line.span(first, len(line.steps)), gradual=(begin, end), split=first,
        time_ns=line.span_ns(first, len(line.steps)), lost_fraction=trend.lost_fraction,
        detail=f"steps became {trend.ratio:.2f} times as long on all ranks, gradually from step "
               f"{begin} to step {end}; that costs {percent(trend.lost_fraction)} of the time",
    )  # fmt: skip


def _is_hidden(
    job: Observed, split: int, change: StepChange | Trend, culprits: Sequence[Suspect]
) -> bool:
    """Whether steps are not longer than before, and a culprit takes as long as ever: what rose
    would show if that one was healed, and costs nothing until then."""
    before, after = slice(job.line.warm_up, split), slice(split, None)
    measured = _healed(job, np.zeros(0))
    rise = stats.median(measured[after]) - stats.median(measured[before])
    lasting = any(one.first < split and one.stop == len(job.line.steps) and not one.spikes
                  for one in culprits)  # fmt: skip
    return lasting and rise < HALF * (change.after_ns - change.before_ns)


def _healed(job: Observed, lost_ns: Floats) -> Floats:
    return job.work.levelled(job.cycle.levelled(job.period_without_ns(lost_ns)))


def find_everyones(
    job: Observed, change: StepChange, culprits: Collection[int]
) -> Regression | None:  # fmt: skip
    """The regression as a finding about all ranks, if they share it and a cause is known.

    Args:
        change: of the step times without what the culprits cost.
        culprits: rows that have a verdict of their own: their pauses and functions are explained.
    """
    rise = shared_rise(job, change, culprits)
    reason = _shown(job, rise, change, culprits)
    if reason is None and change.ratio >= LEAST_RISE:
        reason = _inferred(job, rise, change) or _in_phases(job, change)
        if reason is not None and (fewer := fewer_ranks(job, change)):
            reason = _Reason("unknown", min(reason.sure, SUSPECT_SCORE), detail=fewer)
    return None if reason is None else _finding(job, change, rise, reason)


@dataclass(frozen=True)
class _Reason:
    """A cause, how sure it is, and where it shows."""

    cause: Cause
    sure: float
    phase: str | None = None
    function: str | None = None
    detail: str = ""
    shown: bool = False
    """Whether a measurement shows it; else it follows from what rose at the same time."""
    exposed: str | None = None
    """The operator that computing waits for."""
    of_gpu: bool = False
    """Whether other processes compute on the devices."""
    phases: tuple[str, ...] = ()
    """Where all ranks take longer, and may wait for something that was not recorded."""


def _shown(
    job: Observed, rise: Rise, change: StepChange, culprits: Collection[int]
) -> _Reason | None:  # fmt: skip
    """The cause that a measurement shows, on all ranks or on a different rank in each step."""
    if rise.pause_ns >= HALF * rise.step_ns:
        where = collecting_function(job, change.split, len(job.line.steps))
        return _Reason("gc", 0.9, _named(rise.phase), where, shown=True)
    if job.samples is not None and (not culprits or _is_work(rise)):
        split_ns = int(job.line.begins_ns[change.split])
        others = job.samples.without(culprits)
        others = others.only(_in_usual_steps(job, others, change))
        slow = slower_than_before(others, split_ns, change.before_ns, change.after_ns)
        if slow is not None and ENGINE not in slow.function:  # autograd runs all backward passes
            return _by_function(slow, rise)
    if rise.transfer_ns >= HALF * rise.step_ns:
        return None
    exposed = _exposed(job, change.split, rise)
    if exposed is not None:
        return _by_exposure(exposed)
    return _shared_devices(job, change, rise) or _uneven(job, rise, change, culprits)


def _in_usual_steps(job: Observed, samples: Samples, change: StepChange) -> Mask:
    """Which samples are not of single long steps, such as those that save a checkpoint.

    Nor from before the first judged step, where imports and compilation hide what the loop does.

    The rise is one of medians, while functions have shares of the whole time: what runs in one step
    of twenty would seem to explain it.
    """
    period = job.line.job_period_ns
    usual = np.ones(len(period), bool)
    for part in (slice(0, change.split), slice(change.split, None)):
        side = period[part]
        above = BEYOND_USUAL * stats.sigma(side) + change.after_ns - change.before_ns
        usual[part] = ~(side > stats.median(side) + above)
    column = job.line.column_at(samples.time_ns)
    return (column >= job.line.warm_up) & usual[column]


def _uneven(
    job: Observed, rise: Rise, change: StepChange, culprits: Collection[int]
) -> _Reason | None:  # fmt: skip
    if risen_excess_ns(job, change.split, culprits) < HALF * rise.step_ns:
        return None
    detail = "; in each step a different rank has the most to do, in both passes"
    return _Reason("load_imbalance", 0.7, None, None, detail, shown=True)


def _shared_devices(job: Observed, change: StepChange, rise: Rise) -> _Reason | None:
    """Other processes began to compute on the devices of most ranks when steps became longer.

    EROICA (2026), appendix B: nobody looked at processes that were not training.
    """
    if rise.shared < SHARED or rise.own_ns < HALF * rise.step_ns:
        return None
    before = job.hardware("gpu_strangers", job.line.warm_up, change.split)
    after = job.hardware("gpu_strangers", change.split, len(job.line.steps))
    came = (after - before) >= HALF
    if not came.size or came.mean() < SHARED:
        return None
    detail = f"; since then other processes compute on the devices of {int(came.sum())} ranks"
    return _Reason("contention", 0.8, _named(rise.phase), None, detail, shown=True, of_gpu=True)


def _exposed(job: Observed, split: int, rise: Rise) -> Exposed | None:
    """Communication that computing began to wait for, if that explains the rise."""
    passes = newly_exposed(job, split)
    if passes is not None and passes.grown_ns >= HALF * rise.own_ns:
        return passes
    waits = longer_waited_for(job, split)
    return waits if waits is not None and waits.grown_ns >= HALF * rise.step_ns else None


def _is_work(rise: Rise) -> bool:
    """Whether the ranks themselves did more: with a culprit, most stacks show ranks that wait."""
    own = rise.shared >= SHARED and rise.own_ns >= HALF * rise.step_ns
    return own and (rise.processor_ns is None or rise.processor_ns >= PROCESSOR_TIME * rise.own_ns)


def _by_function(slow: SlowFunction, rise: Rise) -> _Reason:
    cause: Cause = "jit_compile" if compiles(slow.function) else "code"
    function: str | None = slow.named
    loads = loads_data(slow.function)
    if loads or is_loading(rise.phase):
        cause = "data_loading"
        function = None if loads else slow.named  # there it waits for the loader
    detail = f"; {100 * min(slow.grew, 1):.0f} % of the rise is in {slow.function}"
    return _Reason(cause, 0.9, _named(rise.phase), function, detail, shown=True)


def _by_exposure(exposed: Exposed) -> _Reason:
    who = "ranks" if exposed.phase is None else f"{exposed.phase} passes"
    detail = (
        f"; {who} wait for {exposed.op} between replicas, {exposed.within_ns / 1e6:.1f} ms per "
        f"step, {exposed.grown_ns / 1e6:.1f} ms more than before"
    )
    return _Reason("code", 0.8, exposed.phase, None, detail, shown=True, exposed=exposed.op)


def _named(phase: str | None) -> str | None:
    return None if phase in UNNAMED else phase


def _inferred(job: Observed, rise: Rise, change: StepChange) -> _Reason | None:
    """The cause by what rose at the same time, where no function or pause shows it."""
    if not _is_of_all(job, rise, change) or change.ratio < _least_unexplained(job, change):
        return None  # or it is within the noise
    if rise.transfer_ns >= HALF * rise.step_ns:
        return _of_network(job, rise, change)
    if is_loading(rise.phase):
        return _Reason("data_loading", 0.7, rise.phase)
    starved = rise.processor_ns is not None and rise.processor_ns < PROCESSOR_TIME * rise.own_ns
    if starved and rise.phase is None:
        return _of_busy_machines(job, rise, change)
    if rise.phase is not None or rise.selective:  # a busy machine slows down all phases alike
        return _of_some_phases(job, rise, change)
    return _of_everything(job, rise, change)


def _in_phases(job: Observed, change: StepChange) -> _Reason | None:
    """Phases with waiting in which every rank takes longer: a slow server, or a slow network."""
    found = grown_phases(job, change)
    if found is None or change.ratio < _least_unexplained(job, change):
        return None
    return _Reason("unknown", GRADUAL_SCORE, found.phases[0], None, f"; {found.says}",
                   phases=found.phases)  # fmt: skip


def _of_some_phases(job: Observed, rise: Rise, change: StepChange) -> _Reason:
    """Code, or more work if those phases grew that depend on it: the job may have planned that.
    Not where one kernel grew and most others did not."""
    kernel = grown_kernel(job, change.split)
    if kernel is not None:
        detail = f"; kernel {kernel[0]} takes {kernel[1]:.2f} times as long, most others as before"
        return _Reason("code", OF_KERNEL, _named(rise.phase), detail=detail)
    more = looks_like_more_work(job, change.split, rise)
    if more:
        return _Reason("unknown", SUSPECT_SCORE, _named(rise.phase), detail=more)
    return _Reason("code", 0.55, _named(rise.phase))


def _of_everything(job: Observed, rise: Rise, change: StepChange) -> _Reason | None:
    """A rise of which nothing shows the cause: of the job if several hosts share it, else a
    suspicion if it is large."""
    if _is_work(rise) and are_several_at_once(job):
        return _Reason("unknown", GRADUAL_SCORE)
    return _Reason("unknown", 0.3) if change.ratio >= UNEXPLAINED_RATIO else None


def _of_network(job: Observed, rise: Rise, change: StepChange) -> _Reason | None:
    """Whether data moves more slowly, and nothing else: a busy machine moves it more slowly over
    TCP, too, but also computes so. In few steps it is too early: whose link it is shows later.
    Where members of a collective were not recorded, one of those may be late instead."""
    calm = rise.own_ratio - 1 <= UNCHANGED * (change.ratio - 1)
    is_early = is_brief(len(job.line.steps) - job.line.warm_up)
    if is_early or not (calm or on_devices(job)):
        return None
    waits = wait_ns(job) if unrecorded_ranks(job) else np.zeros(len(job.line.steps))
    before, after = waits[job.line.warm_up : change.split], waits[change.split :]
    absent = stats.median(after) - stats.median(before) >= HALF * rise.transfer_ns
    says = "; a rank that was not recorded may be late instead" if absent else ""
    return _Reason("network", SUSPECT_SCORE if absent else 0.6, _named(rise.phase), detail=says)


def _is_of_all(job: Observed, rise: Rise, change: StepChange) -> bool:
    """Whether all ranks got slower, or the network; else some did, and the others waited."""
    explains = rise.modelled_ns >= HALF * rise.step_ns or stands_for_all(rise, change)
    own = rise.shared >= SHARED and explains
    return own or not job.own.phases or rise.transfer_ns >= HALF * rise.step_ns


def stands_for_all(rise: Rise, change: StepChange) -> bool:
    """Whether the own time of ranks is known of less than half of the step, and rose like it: of
    the other phases it is not known how much of them is waiting."""
    if rise.own_ratio <= 1:
        return False
    usual_ns = rise.own_ns / (rise.own_ratio - 1)
    alike = rise.own_ratio - 1 >= HALF * (change.ratio - 1)
    return usual_ns < HALF * change.before_ns and alike


def _of_busy_machines(job: Observed, rise: Rise, change: StepChange) -> _Reason | None:
    """Whether own time rose and processor time did not, because the machines are busy."""
    if are_others_there(job, rise, change):
        return _Reason("contention", 0.6, _named(rise.phase))
    doubled = change.ratio >= UNEXPLAINED_RATIO
    return _Reason("host", 0.4, _named(rise.phase)) if doubled else None


def _least_unexplained(job: Observed, change: StepChange) -> float:
    series = job.line.job_period_ns[job.line.warm_up : change.split]
    level = stats.median(series)
    return 1.0 + max(0.1, BEYOND_NOISE * stats.sigma(series) / level if level > 0 else 0.0)


def _share_of_steps(job: Observed, change: StepChange) -> float:
    """What a rise costs of the steps as they are, and not as they would be without culprits."""
    measured = stats.median(job.line.job_period_ns[change.split :])
    return (1 - 1 / change.ratio) * min(change.after_ns / max(measured, 1.0), 1.0)


def _finding(job: Observed, change: StepChange, rise: Rise, reason: _Reason) -> Regression:
    line, stop = job.line, len(job.line.steps)
    detail = (
        f"steps take {change.ratio:.2f} times as long on all ranks from step "
        f"{line.steps[change.split]}{reason.detail}"
    )
    return Regression(
        method="regression", cause=reason.cause, detail=detail,
        phase=reason.phase, function=reason.function,
        steps=line.span(change.split, stop), time_ns=line.span_ns(change.split, stop),
        slowdown=change.ratio, lost_ns=rise.step_ns, score=reason.sure,
        lost_fraction=_share_of_steps(job, change),
        devices=all_hosts(job.window) if reason.of_gpu else (),
        victims=0, split=change.split, measured=reason.shown, exposed=reason.exposed,
        of_gpu=reason.of_gpu, phases=reason.phases,
        values={"z": change.z, "own_ns": rise.own_ns, "shared": rise.shared,
                "processor_ns": rise.processor_ns, "pause_ns": rise.pause_ns,
                "transfer_ns": rise.transfer_ns, "shown": reason.shown,
                "exposed": reason.exposed},
    )  # fmt: skip
