"""Whether a rise that all ranks seem to share is an after-effect of a culprit that was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepscope.diagnose.decide.measured_rise import others_rise_ns
from stepscope.diagnose.decide.same_loss import is_within
from stepscope.diagnose.decide.starved import STARVED
from stepscope.diagnose.decide.waits_known import hides_waits
from stepscope.diagnose.finding import (
    Decision,
    Finding,
    Regression,
    Slowdown,
    SlowLink,
    Waste,
)
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import HALF, LEAST_SCORE

MEASURED_RISE = "measured-rise"
GROWS_ALIKE = 0.9
"""Part of how step times vary that follows a culprit whose slowness grows. Our choice: the rest is
noise."""
TURNS_SCORE = 0.7
"""As of ranks that hold up all others in turns (`in_turns.SCORE`). Our choice."""


def is_after_effect(
    job: Observed,
    rise: Regression,
    culprits: Sequence[Suspect],
    beside: Sequence[Finding],
) -> bool:
    """Whether a culprit was slow for most of a rise that has no measured cause of its own.

    A rank that is starved of its processor is also slow in its part of each transfer, which lasts
    longer for all: one cause, and one verdict. The same holds for a rank found by kernels alone,
    because it is not known what each step would take without it. And ranks that a slow link holds
    up make others wait in their own transfers, which then seem to be slow everywhere. But nobody
    makes others work longer: a rise of what the median rank itself does has another cause, unless
    nobody knows one and a culprit with half as much excess became slow in the same step. That two
    faults do so by chance happens in three jobs of as many as there are steps. The same holds for
    a slow network, where ranks may wait for data within the phases in which all seem to do more.

    Args:
        beside: other findings that deserve a verdict; links count only beside a slow network.
    """
    if rise.measured or rise.split is None:
        return False
    if any(_moves_slower_since(job, rise, one) for one in beside):
        return True
    if _all_work_longer(job, rise) and not _begins_with(job, rise, culprits):
        return False
    others = [one for one in beside if rise.cause == "network"
              or not isinstance(one, SlowLink) or one.kernels]  # fmt: skip
    stop = _end_of(job, rise)
    slow = max(_slow_within(job, culprits, others, rise.split, stop), default=0)
    return slow >= HALF * (stop - rise.split)


def _end_of(job: Observed, rise: Regression) -> int:
    """The column after the last one of a rise."""
    if rise.steps is None:
        return len(job.line.steps)
    return int(job.line.columns(np.array(rise.steps))[1]) + 1


def _begins_with(job: Observed, rise: Regression, culprits: Sequence[Suspect]) -> bool:
    """Whether a culprit became slow when steps did, by as much as can be seen, while nobody knows
    why others rose."""
    assert rise.split is not None
    hidden = hides_waits(job)
    by_phase = hidden and rise.cause == "code" and rise.function is None
    least = 0.0 if hidden else HALF * rise.lost_ns
    at_once = [
        one.excess_ns
        for one in culprits
        if abs(one.first - rise.split) <= 1 or (hidden and _grows_with(job, rise, one))
    ]
    return (rise.cause == "unknown" or by_phase) and max(at_once, default=-1.0) >= least


def _grows_with(job: Observed, rise: Regression, one: Suspect) -> bool:
    """Whether steps grew longer little by little as what a culprit takes longer did, and by no more
    times: what is slower in the phases without waiting is as slow in the others."""
    if rise.gradual is None or one.slowdown < (rise.slowdown or np.inf):
        return False
    excess = job.excess_of(one.phase, one.row)[job.line.warm_up :]
    period = job.line.job_period_ns[job.line.warm_up :]
    known = np.isfinite(excess) & np.isfinite(period)
    if not (known.any() and np.ptp(excess[known]) and np.ptp(period[known])):
        return False
    return float(np.corrcoef(excess[known], period[known])[0, 1]) ** 2 >= GROWS_ALIKE


def _moves_slower_since(job: Observed, rise: Regression, one: Finding) -> bool:
    """Whether data moves slower since the step of a rise without a measured cause, and nobody
    recorded the operators or said which phases contain waiting."""
    if not isinstance(one, SlowLink) or one.steps is None or rise.split is None:
        return False
    first, last = job.line.columns(np.array(one.steps)).tolist()
    lasts = last + 1 - first >= HALF * (len(job.line.steps) - rise.split)
    with_it = abs(first - rise.split) <= 1 and rise.cause != "data_loading"
    return hides_waits(job) and not rise.measured and with_it and lasts


def _all_work_longer(job: Observed, rise: Regression) -> bool:
    """Whether most of a rise, which culprits have no part in, is the median rank's own time."""
    work = stats.column_median(job.total)
    before, since = work[job.line.warm_up : rise.split], work[rise.split : _end_of(job, rise)]
    own = stats.median(since) - stats.median(before)
    return bool(own >= HALF * rise.lost_ns > 0)


def is_of_trend(rise: Regression, one: Finding) -> bool:
    """Whether a rank is only the first in what grows on all of them: it became slow while steps
    grew longer little by little, costs less than half of that, and nothing measured says why."""
    if rise.gradual is None or not isinstance(one, Slowdown) or one.steps is None:
        return False
    later = rise.gradual[0] < one.steps[0]
    less = (one.lost_fraction or 0.0) < HALF * (rise.lost_fraction or 0.0)
    return later and less and not one.measured_cost


def is_turn_of(job: Observed, rise: Regression, one: Finding) -> bool:
    """Whether a rank is only one of those that hold up the steps of a rise, one after another: it
    was slow for less than half of it, and steps were as long without it."""
    if rise.split is None or not isinstance(one, Slowdown) or one.steps is None:
        return False
    if not is_within(one, rise):
        return False
    columns = np.arange(len(job.line.steps))
    its = np.array(sorted(one.columns)) if one.columns else columns[job.line.within(one.steps)]
    rest = np.setdiff1d(columns[rise.split :], its)
    if not its.size or its[0] < rise.split or its.size >= rest.size or one.measured_cost:
        return False
    there, elsewhere = (stats.median(job.line.job_period_ns[part]) for part in (its, rest))
    cost_ns = (one.lost_fraction or 0.0) * there
    return there - elsewhere < HALF * cost_ns


def with_turns(
    job: Observed, rise: Regression, blamed: Sequence[Finding]
) -> tuple[Regression, list[Finding]]:  # fmt: skip
    """The rise, and the findings that are parts of it. If ranks hold up its steps one after
    another, all for one reason, that is its cause, unless it has a likelier one."""
    turns = [one for one in blamed if is_turn_of(job, rise, one)]
    parts = [one for one in blamed if one in turns or is_of_trend(rise, one)]
    causes = {(one.cause, one.phase) for one in turns}
    if len(causes) != 1 or not (rise.cause == "unknown" or rise.score < LEAST_SCORE):
        return rise, parts
    ((cause, phase),) = causes
    detail = f"{rise.detail}; {turns[0].detail}, and other ranks take turns with it"
    return replace(rise, cause=cause, phase=phase, detail=detail, score=TURNS_SCORE), parts


def beyond(
    turns: Sequence[tuple[Regression, Finding]], rises: Sequence[Finding], by: Finding
) -> list[Slowdown]:
    """Slow ranks that seemed to be parts of some rises, which another finding explains, but not at
    the time of these ranks."""
    of_these = [part for rise, part in turns if any(rise is one for one in rises)]
    return [part for part in of_these
            if isinstance(part, Slowdown) and part.suspect and not is_within(part, by)]  # fmt: skip


def charged(job: Observed, rise: Regression, blamed: Sequence[Finding]) -> list[Finding]:
    """The findings; the rest of the rise is added to the cost of those that explain it.

    A model of the step may not know that a starved host also slows its transfers; the measured rise
    does, and no model may veto it. Nor do they cost more together than steps got longer: what some
    cost may have been measured by the same rise already. What the other ranks do longer, too, such
    as larger batches, is not theirs, unless they may only wait for data in it.
    """
    assert rise.split is not None
    columns = np.arange(len(job.line.steps))
    guilty = {rank for one in blamed if _cost(job, rise, one) for rank in one.ranks}
    waits = any(_may_be_waited_for(job, rise, one) for one in blamed)
    of_all = 0.0 if waits else others_rise_ns(
        job, guilty, columns[job.line.warm_up : rise.split], columns[rise.split :])  # fmt: skip
    period = job.line.job_period_ns
    usual = max(stats.median(period[rise.split :]), 1.0)
    before = stats.median(period[job.line.warm_up : rise.split])
    whole = sum(_cost(job, rise, one) for one in blamed)
    theirs, rest = rise.lost_ns - of_all, usual - before - of_all
    extra = max(min(theirs / usual, rest / usual - whole), 0.0)
    return [_with_more(one, min(extra * part / whole, _beyond(job, rise, one, usual)))
            if (part := _cost(job, rise, one)) else one for one in blamed]  # fmt: skip


def _may_be_waited_for(job: Observed, rise: Regression, one: Finding) -> bool:
    """Whether what the other ranks do longer since then may be waiting that nobody measured."""
    if isinstance(one, Slowdown) and one.suspect is not None and hides_waits(job):
        return _begins_with(job, rise, (one.suspect,))
    return _moves_slower_since(job, rise, one)


def _beyond(job: Observed, rise: Regression, one: Finding, usual: float) -> float:
    """How much more a finding can cost than it does already: in all no more than its ranks take
    longer than their peers, unless they are starved, which slows transfers as well, or the others
    may have waited in what they are compared by."""
    if not isinstance(one, Slowdown) or one.cause in STARVED or not job.own.phases:
        return np.inf
    if _may_be_waited_for(job, rise, one):
        return np.inf
    after = slice(rise.split, None)
    rows = job.line.rows(np.array(one.ranks, np.int64))
    excess = [stats.median(job.excess_of(None, row)[after]) for row in rows[rows >= 0].tolist()]
    return max(max(excess, default=np.inf) / usual - (one.lost_fraction or 0.0), 0.0)


def charged_once(job: Observed, rise: Regression, blamed: Sequence[Finding]) -> list[Finding]:
    """The findings; a rise that was charged to some of them is not charged for what turned out to
    be wasted by all ranks since then."""
    wasted = sum(one.lost_fraction or 0.0 for one in blamed
                 if isinstance(one, Waste) and _began_with(job, rise, one))  # fmt: skip
    of_rise = [_charge(one) if _cost(job, rise, one) else 0.0 for one in blamed]
    back = min(wasted / max(sum(of_rise), 1e-9), 1.0)
    return [_with_more(one, -back * part) if back * part > 0 else one
            for one, part in zip(blamed, of_rise, strict=True)]  # fmt: skip


def _began_with(job: Observed, rise: Regression, one: Waste) -> bool:
    """Whether a waste lasts for most of the rise, and was not there for most of the time before."""
    if one.ranks or one.steps is None or rise.split is None:
        return False
    first, last = job.line.columns(np.array(one.steps)).tolist()
    before = rise.split - max(first, job.line.warm_up)
    within = last + 1 - max(first, rise.split)
    is_new = before < HALF * (rise.split - job.line.warm_up)
    return bool(is_new and within >= HALF * (len(job.line.steps) - rise.split))


def _charge(one: Finding) -> float:
    """How much of a measured rise was added to the cost of a finding."""
    return sum(each.value or 0.0 for each in one.decisions if each.rule == MEASURED_RISE)


def _cost(job: Observed, rise: Regression, one: Finding) -> float:
    """The cost of a finding that lasts for most of the rise; 0 for others."""
    if not isinstance(one, (Slowdown, SlowLink)) or one.steps is None or rise.split is None:
        return 0.0
    first, last = job.line.columns(np.array(one.steps)).tolist()
    lasts = last + 1 - max(first, rise.split)
    if isinstance(one, Slowdown) and one.spikes is not None:
        lasts = min(lasts, one.spikes)
    explains = lasts >= HALF * (len(job.line.steps) - rise.split)
    return (one.lost_fraction or 0.0) if explains else 0.0


def _with_more(one: Finding, extra: float) -> Finding:
    if isinstance(one, Slowdown) and one.measured_cost:
        return one
    lost = min(max((one.lost_fraction or 0.0) + extra, 0.0), 1.0)
    says = "of the measured rise is added to what the model of the step says it costs"
    decision = Decision(MEASURED_RISE, True, extra, None, says, gate=False)
    return replace(one, lost_fraction=lost, decisions=(*one.decisions, decision))


def _slow_within(
    job: Observed, culprits: Sequence[Suspect], others: Sequence[Finding], first: int, stop: int
) -> list[int]:
    """In how many columns of a rise each culprit is slow, and each finding that has no row of the
    grid lasts."""
    steps = [one.steps for one in others if one.steps is not None]
    ends = job.line.columns(np.array(steps, np.int64).ravel()).reshape(-1, 2)
    lasts = [min(last + 1, stop) - max(begin, first) for begin, last in ends.tolist()]
    slow = [np.arange(len(job.line.steps))[one.columns] for one in culprits]
    return lasts + [int(((first <= at) & (at < stop)).sum()) for at in slow]
