"""What ranks spent profiled steps in: the functions with the largest shares, for reports."""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.account.ranges import Judge
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.shown import FunctionUse
from stepscope.diagnose.views.patterns import Patterns

MOST = 30
"""Functions that are listed; those with more than one percent are seldom more than twenty (EROICA,
section 4.3). Paper."""

OWN_THREADS = "stepscope-"
"""What the names of our own threads in a training process begin with: not the job's functions."""


def functions(job: Observed) -> tuple[FunctionUse, ...]:
    """Of the last window of profiling, the function with the largest share on any rank first."""
    if not job.patterns:
        return ()
    window = job.patterns[-1]
    judge = Judge(window, job.expected)
    found = [_use(job, judge, window, at) for at, one in enumerate(window.functions)
             if OWN_THREADS not in (one.thread or "")]  # fmt: skip
    return tuple(sorted(found, key=lambda one: (-one.most, one.name))[:MOST])


def _use(job: Observed, judge: Judge, window: Patterns, at: int) -> FunctionUse:
    one, beta = window.functions[at], window.beta[at]
    expected = judge.expected(one)
    worst = window.rows[int(np.argmax(beta[window.rows]))]
    mu = stats.median(window.mu[at]) if np.isfinite(window.mu[at]).any() else None
    return FunctionUse(
        one.frame, one.kind, one.caller, one.thread, window.steps, len(window.rows),
        float(beta[window.rows].min()), stats.median(beta), float(beta[worst]),
        int(job.line.ranks[worst]), one.resource, mu,
        None if one.waits and not judge.is_learned(one) else expected.beta.high,
        judge.is_learned(one),
    )  # fmt: skip
