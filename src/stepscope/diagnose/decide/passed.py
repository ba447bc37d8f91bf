"""A slowness that has passed: too cheap for a verdict in all, and costly while it lasted.

Fault: a rank that was much slower for some steps, as by a device that throttled for half a minute.
What differs from single spikes, which every process has: it lasted for several steps in a row, and
cost the job in them as much as no job may lose and still be called healthy. It accuses nobody, as
it is over and may never return; but steps that took so much longer are no part of a healthy job,
and whoever asks about them learns who it was.
Cost: none. Cannot see: what lasts for fewer steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepscope.diagnose.decide.cost import among_spikes
from stepscope.diagnose.decide.rules import ON_CRITICAL_PATH, suspected
from stepscope.diagnose.detect.ranks.transient import LASTING
from stepscope.diagnose.finding import Decision, Slowdown, Unsteady
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import LEAST_COST_OF_PAUSES
from stepscope.diagnose.words.numbers import percent
from stepscope.diagnose.words.summary import summary

RULE = "cost-while-it-lasted"


def passed(job: Observed, cheap: Sequence[Slowdown]) -> list[Slowdown]:
    """Suspects for the findings that were costly in a few steps in a row."""
    shares = [_share(job, one) for one in cheap]
    return [_suspect(one, share) for one, share in zip(cheap, shares, strict=True)
            if share >= LEAST_COST_OF_PAUSES]  # fmt: skip


def as_unsteady(one: Slowdown) -> Unsteady:
    """The steps in which it was slow, as long steps of the job."""
    return Unsteady(one.method, one.cause, "", spikes=tuple(sorted(one.columns)))


def _share(job: Observed, one: Slowdown) -> float:
    """Its share of the steps in which it was slow; 0 where these are few, or not in a row."""
    suspect, columns = one.suspect, np.array(sorted(one.columns), np.int64)
    longest = max((run.size for run in stats.runs_of(columns)), default=0)
    if suspect is None or not suspect.spikes or longest < LASTING:
        return 0.0
    period = np.nan_to_num(job.line.job_period_ns)
    lost_ns = (one.lost_fraction or 0.0) * float(period[among_spikes(job, suspect)].sum())
    return min(lost_ns / max(float(period[columns].sum()), 1.0), 1.0)


def _suspect(one: Slowdown, share: float) -> Slowdown:
    says = (f"while it lasted, steps would have taken {percent(share)} less without it, but "
            "it has passed")  # fmt: skip
    decision = Decision(RULE, True, share, LEAST_COST_OF_PAUSES, says, gate=False)
    others = tuple(each for each in one.decisions if each.rule != ON_CRITICAL_PATH.name)
    until = f" to step {one.steps[1]}" if one.steps else ""
    return suspected(replace(one, says=summary(one) + until, decisions=others), decision)
