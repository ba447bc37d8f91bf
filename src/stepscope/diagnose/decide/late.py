"""Ranks that were found by when they arrive: what else is their effect, and why they are late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepscope.diagnose.decide.cause import reason_of
from stepscope.diagnose.decide.same_loss import names_nothing
from stepscope.diagnose.decide.slow_ranks import named_phase
from stepscope.diagnose.detect.hosts.host_time import CAUSES, most_lost, waited_for
from stepscope.diagnose.detect.ranks.late_alone import SCORE
from stepscope.diagnose.detect.ranks.slowdown import suspect_of
from stepscope.diagnose.explain.elimination import Elimination
from stepscope.diagnose.finding import Cause, Finding, Recurring, Regression, Slowdown
from stepscope.diagnose.method import Explanation
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import HALF


def waiting_for(
    job: Observed, blamed: Sequence[Finding], late: Sequence[Slowdown]
) -> list[Finding] | None:
    """The findings that are waiting for the ranks that arrive last; None where one of the others
    names something, and these ranks may be its victims."""
    waits = [one for one in blamed if any(_is_waiting(job, one, by) for by in late)]
    known = all(one in waits or names_nothing(one) for one in blamed)
    return waits if known else None


def _is_waiting(job: Observed, rise: Finding, late: Slowdown) -> bool:
    """Whether long steps of an unknown cause, or an inferred rise of all ranks, are their waiting
    for ranks that arrive last: where passes hide waiting, what one takes longer is in the passes of
    all. These cost half of it, and steps are longer when they are later."""
    if (late.lost_fraction or 0.0) < HALF * (rise.lost_fraction or 0.0):
        return False
    if isinstance(rise, Recurring) and names_nothing(rise):
        return True
    if not isinstance(rise, Regression) or rise.measured or rise.split is None:
        return False
    if rise.function is not None or job.arrivals is None:
        return False
    rows, judged = np.isin(job.line.ranks, late.ranks), slice(job.line.warm_up, None)
    lag_ns = job.arrivals.most_lag_of(rows, len(job.line.steps))[judged]
    if np.ptp(lag_ns) <= 0:
        return False
    return bool(np.corrcoef(lag_ns, np.nan_to_num(job.period_ns[judged]))[0, 1] >= HALF)


def as_sure_as(late: Slowdown, waits: Sequence[Finding]) -> Slowdown:
    """The ranks, no less sure than the loss of all that is found to be theirs."""
    sure = [one.score for one in waits if isinstance(one, Recurring)]
    return replace(late, score=max([late.score, *(min(one, SCORE) for one in sure)]))


def with_cause(job: Observed, one: Slowdown, explanations: Sequence[Explanation]) -> Slowdown:
    """The rank with the cause that a measurement shows, or that its own time suggests if this
    explains most of what the rank costs."""
    if len(one.ranks) != 1 or one.steps is None or not job.own.phases:
        return _of_whole_host(job, one)
    row, first, last = *job.line.rows(np.array(one.ranks)), *job.line.columns(np.array(one.steps))
    suspect = suspect_of(job, int(row), (int(first), int(last) + 1), None, (None,))
    if not suspect.excess_ns >= HALF * (one.lost_fraction or 0.0) * job.line.typical_ns:
        explanations = [each for each in explanations if each.name != Elimination.name]
    reason = reason_of(job, suspect, explanations)
    if reason.cause == "unknown":
        return one
    return replace(
        one, lost_fraction=_lost(job, one, reason.cause, int(row)), cause=reason.cause,
        phase=named_phase(suspect), function=reason.chosen.function,
        kernels=reason.kernels, supporting=reason.evidence,
        decisions=(*one.decisions, *reason.decisions),
    )  # fmt: skip


def _of_whole_host(job: Observed, one: Slowdown) -> Slowdown:
    """The ranks of a host that are late together: because of it if their devices wait for it, and
    then they cost what it takes longer; else for another reason."""
    if one.cause not in CAUSES or one.lost_of is None or job.host_ns is None:
        return one
    part, lost = np.flatnonzero(job.line.within(one.lost_of)), one.lost_fraction or 0.0
    rows, period_ns = job.line.rows(np.array(one.ranks)), job.line.job_period_ns[part]
    if stats.median(np.array([waited_for(job, int(row), part) for row in rows])) < HALF * lost:
        return replace(one, cause="unknown")
    least = min(most_lost(job, int(row), part, period_ns) or 0.0 for row in rows)
    return replace(one, lost_fraction=min(lost, least))


def _lost(job: Observed, one: Slowdown, cause: Cause, row: int) -> float | None:
    """What it costs: others wait for a late host, but whose host takes as long as theirs does would
    be in nobody's way if it had not begun late."""
    if cause not in CAUSES or one.lost_of is None:
        return one.lost_fraction
    part = np.flatnonzero(job.line.within(one.lost_of))
    most = most_lost(job, row, part, job.line.job_period_ns[part])
    return one.lost_fraction if most is None else min(one.lost_fraction or 0.0, most)
