"""Turns suspects, with their cause and cost, into findings about culprits, or rejects them.

The six rules of blame (`rules`) are applied here, and every one leaves a `Decision`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.decide import rules
from stepscope.diagnose.decide.cause import Reason, reason_of
from stepscope.diagnose.decide.cost import Cost, among_spikes
from stepscope.diagnose.decide.culprits import in_common
from stepscope.diagnose.decide.experts import excused
from stepscope.diagnose.decide.join import joined
from stepscope.diagnose.decide.sets import with_sets
from stepscope.diagnose.decide.whole_groups import as_groups
from stepscope.diagnose.detect.hosts import host_time
from stepscope.diagnose.detect.ranks.straggler_brief import SUSPECTS
from stepscope.diagnose.explain import gpu, passes
from stepscope.diagnose.explain.saving import saves
from stepscope.diagnose.finding import Cause, Slowdown, Span, Value
from stepscope.diagnose.method import Explanation
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.communication import is_work
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import (
    CAUSE_BONUS,
    HALF,
    HIGHEST_SCORE,
    LATE_BONUS,
    LEAST_COST,
    LEAST_COST_ALONE,
    LEAST_COST_IN_GAPS,
    LEAST_COST_OF_PAUSES,
    LEAST_COST_ONCE,
    LEAST_COST_OUTSIDE,
    LEAST_COST_REPEATED,
    MOST_SIGMAS,
    SCORE,
    SCORE_PER_SIGMA,
)
from stepscope.diagnose.views.unnamed import GAPS, OUTSIDE, UNNAMED
from stepscope.diagnose.words.summary import often
from stepscope.trace import BACKWARD, FORWARD

ON_DEVICE: tuple[Cause, ...] = ("compute", "load_imbalance")
"""Causes of which a device's kernels are longer, or more; contract."""
ORDINARY_SCORE = 0.45
"""Of a rank with experts that takes no longer than experts differ anyway, or that seems to save in
one step of a trace: a suspect. Our choice."""


@dataclass(frozen=True)
class Judged:
    """The outcome for the suspects."""

    costly: tuple[Slowdown, ...]
    cheap: tuple[Slowdown, ...]
    """Those whose slowness costs too little for a verdict."""
    culprits: tuple[Suspect, ...]
    """The suspects behind the costly ones."""


def judge(
    job: Observed,
    found: Sequence[Slowdown],
    cost: Cost,
    explanations: Sequence[Explanation],
) -> Judged:
    """Explains each suspect, weighs its cost, and joins those that have one cause."""
    suspects = excused(job, [one.suspect for one in found if one.suspect is not None])
    reasons = [reason_of(job, one.at_its_worst, explanations) for one in suspects]
    slow = [_slowdown(job, finding, suspect, reason, cost, at)
            for at, (finding, suspect, reason) in enumerate(
                zip(found, suspects, in_common(job, suspects, reasons), strict=True))]  # fmt: skip
    slow = host_time.together(job, slow)
    cluster = frozenset(job.line.ranks[job.slow_side(None)].tolist())
    together = as_groups(job, joined(job, slow, cluster))
    weighed = [rules.weighed(one) for one in together]
    weighed = with_sets(job, weighed, suspects)
    costly = tuple(one for one in weighed if one.costs_enough)
    cheap = tuple(one for one in weighed if not one.costs_enough)
    named = {rank for one in costly for rank in one.ranks}
    kept = tuple(one for one in suspects if int(job.line.ranks[one.row]) in named)
    return Judged(costly, cheap, kept)


def _slowdown(
    job: Observed, found: Slowdown, suspect: Suspect, reason: Reason, cost: Cost, at: int
) -> Slowdown:  # fmt: skip
    """One culprit with its cause and cost."""
    line, chosen, lag = job.line, reason.chosen, cost.lag_ns[at]
    few = len(cost.lag_ns) * SUSPECTS <= len(line.ranks)
    phase = chosen.phase or (None if chosen.whole_rank else named_phase(suspect))
    computes = reason.cause == "compute"
    no_pause = chosen.proven or (computes and chosen.strength == "measured")
    share, least = cost.fractions[at], _least_cost(job, suspect, chosen.proven, no_pause)
    share = min(share, _most_lost(job, suspect)) if reason.cause in host_time.CAUSES else share
    clock = gpu.relative_clock(job, suspect.row, suspect.first, suspect.stop) if computes else None
    extent = passes.extent(job, suspect) if computes else "some"
    spikes = len(suspect.spikes) if suspect.spikes else None
    late = () if lag is None else (rules.arrives_last(lag, "all suspects together"),)
    values: dict[str, Value] = {
        "slowdown": suspect.slowdown, "effect": suspect.effect, "z": suspect.z,
        "z_needed": suspect.needed, "excess_ns": suspect.excess_ns, "lost_fraction": share,
        "least_fraction": least,
        **({"blows": spikes, "steps": suspect.stop - suspect.first} if spikes else {}),
        "lag_ns": lag,
        **({"clock": clock, "slow_in": extent} if computes else {}),
        **({"of_gpu": True} if chosen.of_gpu else {}),
        **({"host_timers": True} if computes and _timed_by_hosts(job) else {}),
    }  # fmt: skip
    return replace(
        found, cause=reason.cause, phase=phase, kernels=reason.kernels,
        detail=_detail(suspect) + _at_least(job, suspect) + _alone(job),
        function=chosen.function, slowdown=chosen.slowdown or suspect.slowdown,
        lost_fraction=share, least_fraction=least, score=_score(job, suspect, lag, reason, few),
        values=values, supporting=reason.evidence, lag_ns=lag, spikes=spikes,
        of_steps=suspect.stop - suspect.first, clock=clock, extent=extent, of_gpu=chosen.of_gpu,
        beside=chosen.beside, victims=0 if job.asynchronous else found.victims,
        columns=frozenset(np.arange(len(line.steps))[suspect.columns].tolist()),
        has_onset=bool(suspect.spikes) or suspect.first > line.warm_up,
        lost_of=_lost_of(job, suspect),
        decisions=(*found.decisions, *late, *reason.decisions,
                   rules.unequal_work(reason.cause)),
    )  # fmt: skip


def _most_lost(job: Observed, suspect: Suspect) -> float:
    """What a late host costs at most, as a share of the steps that its cost is related to."""
    part = np.arange(len(job.line.steps))[suspect.columns]
    whole = among_spikes(job, suspect) if suspect.spikes else part
    most = host_time.most_lost(job, suspect.row, part, job.line.job_period_ns[whole])
    return 1.0 if most is None else most


def _timed_by_hosts(job: Observed) -> bool:
    """Whether ranks wait in a phase that is no pass, as hosts do for a device that works on: their
    timers show launching, and nobody knows whether the device computes longer."""
    waits = (frozenset(job.own.inferred) | job.own.hidden_phases) - {FORWARD, BACKWARD, *UNNAMED}
    known = job.window.table("kernels") is not None
    return not known and any(map(is_work, waits))


def _lost_of(job: Observed, suspect: Suspect) -> Span | None:
    if not suspect.spikes:
        return None
    part = among_spikes(job, suspect)
    return job.line.span(part.start, part.stop)


def named_phase(suspect: Suspect) -> str | None:
    """The phase by its name for users; None for times outside of phases."""
    return None if suspect.phase in UNNAMED else suspect.phase


def _score(job: Observed, suspect: Suspect, lag: float | None, reason: Reason, few: bool) -> float:
    if suspect.ordinary and not (reason.chosen.proven and reason.cause != "load_imbalance"):
        return ORDINARY_SCORE
    if job.line.is_trace and saves(job, suspect):
        return ORDINARY_SCORE
    if not suspect.phases:
        return min(SCORE + LATE_BONUS * bool(lag) + MOST_SIGMAS * SCORE_PER_SIGMA, HIGHEST_SCORE)
    beyond = min(suspect.z - suspect.needed, MOST_SIGMAS)
    on_device = job.window.table("kernels") is not None and reason.cause in ON_DEVICE
    if few and job.line.is_single_step and on_device and reason.chosen.strength == "measured":
        # each kernel ran many times: it is no moment's delay, nor are the samples of many longer
        beyond = max(beyond, 0.0)
    sure = SCORE + SCORE_PER_SIGMA * beyond
    sure += LATE_BONUS * bool(lag) + CAUSE_BONUS * bool(reason.evidence)
    return min(sure, HIGHEST_SCORE)


def _detail(suspect: Suspect) -> str:
    noise = f" (z {suspect.z:.1f}, noise reaches {suspect.needed:.1f})" if suspect.phases else ""
    if not suspect.spikes:
        ordinary = "; ranks with experts may differ as much anyway" if suspect.ordinary else ""
        return (f"own time {suspect.excess_ns / 1e6:.1f} ms per step above {suspect.usual}{noise}"
                f"{ordinary}")  # fmt: skip
    each_ns = suspect.whole_ns / len(suspect.spikes)
    return (f"own time {each_ns / 1e6:.1f} ms above {suspect.usual}"
            f"{often(len(suspect.spikes), suspect.stop - suspect.first)}{noise}")  # fmt: skip


def _at_least(job: Observed, suspect: Suspect) -> str:
    """That waiting hides more of what the rank takes longer, if so: its cost is a lower bound."""
    if job.own.hidden_phases.isdisjoint(suspect.phases) and suspect.phase not in job.own.lasted:
        return ""
    return (
        "; it costs at least this: in phases with waiting that nobody measured more may be hidden"
    )


def _alone(job: Observed) -> str:
    if not job.asynchronous:
        return ""
    return "; ranks do not wait for each other here, so the others lose nothing by it"


def _least_cost(job: Observed, suspect: Suspect, proven: bool, no_pause: bool) -> float:
    """The least cost of a suspect's verdict.

    What may be noise, or a duty of the rank, must cost more, unless its cause was measured; alone
    only the first and the last rank have duties. Traces have gaps between operators within and
    outside of phases, so all count alike there, and what a device is seen to compute in them is no
    pause. Nor is it one that comes in most steps. A rank that nobody waits for has to lose enough
    of its own steps, whatever part of the job's these are.
    """
    if job.asynchronous:
        return LEAST_COST_ALONE / len(job.line.ranks)
    if job.window.table("host_ops") is not None:
        return LEAST_COST_OF_PAUSES if suspect.alone and not no_pause else LEAST_COST
    judged = len(job.line.steps) - job.line.warm_up
    spikes = 0 < len(suspect.spikes) <= HALF * judged
    if spikes and (proven or not suspect.alone) and suspect.phase != OUTSIDE:
        return LEAST_COST_REPEATED
    if proven:
        return LEAST_COST
    has_duty = suspect.alone or suspect.row in (0, len(job.line.ranks) - 1)
    if (spikes or suspect.alone) and (suspect.phase != OUTSIDE or not has_duty):
        return LEAST_COST_ONCE
    return {OUTSIDE: LEAST_COST_OUTSIDE, GAPS: LEAST_COST_IN_GAPS}.get(
        suspect.phase or "", LEAST_COST
    )
