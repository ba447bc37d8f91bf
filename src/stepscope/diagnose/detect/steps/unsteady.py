"""ARGUS level 1 as a detector: single long steps that nothing explains, and a lasting rise.

Fault: a job whose steps vary, or became longer, whichever rank is to blame.
Paper: ARGUS (2026), section 6.1 and appendix B, "L1". What differs: see `step_time`; steps in which
the job saves or evaluates are left out (`duties`).
Cost: linear in steps. Cannot see: what was slow from the start, nor who or why.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.diagnose.detect.steps import step_time
from stepscope.diagnose.detect.steps.duties import expected
from stepscope.diagnose.detect.steps.stages import in_stages
from stepscope.diagnose.finding import Unsteady
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.views.timeline import WARM_UP_STEPS

JITTER_COST = 0.02
"""Spikes that cost less than this share of all step time do not make a job jittery. Our
simulator."""


class StepTimes:
    """Single long steps of the whole job that no schedule explains, and a lasting rise."""

    name = "argus-l1"
    needs = Needs("steps|phases|comm_ops|kernels")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Unsteady]:
        line = job.line
        if not len(line.steps):
            return
        spikes = unexplained_spikes(job)
        if spikes:
            detail = f"{len(spikes)} steps are long, and no schedule explains them"
            yield Unsteady(self.name, "unknown", detail, spikes=spikes)
        series = job.period_ns[line.warm_up :]
        change = (step_time.regression(series) or in_stages(series)
                  or step_time.between_jobs(series, line.first_own))  # fmt: skip
        if change is not None:
            split = change.split + line.warm_up
            detail = f"steps take {change.ratio:.2f} times as long from step {line.steps[split]}"
            yield Unsteady(self.name, "unknown", detail, slowdown=change.ratio, split=split,
                           why=_of_work(job, split))  # fmt: skip


def _of_work(job: Observed, split: int) -> str:
    """What explains a rise, if steps would not have become longer with work of one size."""
    series = job.work.levelled(job.period_ns)[job.line.warm_up :]
    if not job.work.varies or step_time.regression(series, step_time.SLIGHT_RISE) is not None:
        return ""
    return f"the job's own work grew: it is {job.work.grown(split):.2f} times as large"


def unexplained_spikes(job: Observed) -> tuple[int, ...]:
    """Columns of long steps that no schedule or checkpoint explains, if they cost enough."""
    line = job.line
    series = job.period_ns[line.warm_up :]
    spikes = step_time.jitter(series, line.steps[line.warm_up :], WARM_UP_STEPS - line.warm_up)
    odd = spikes.columns[~expected(job, job.samples, spikes.columns + line.warm_up)]
    lost_ns = float((series[odd] - spikes.baseline_ns).sum())
    costly = lost_ns >= JITTER_COST * float(np.nansum(series))
    return tuple(int(one) + line.warm_up for one in odd) if costly else ()
