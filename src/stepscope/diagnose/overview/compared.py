"""What a job spends more or less time on than the healthy one that it was compared with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.shown import Change, Compared
from stepscope.diagnose.views.breakdown import is_computing
from stepscope.diagnose.views.timeline import timeline
from stepscope.window import Floats, Window

LEAST = 0.005
"""Changes below this part of a step are not listed: a quarter of the smallest rise that is looked
for (`step_time.SLIGHT_RISE`). Our choice."""
MOST = 12
"""Changes that are listed. Our choice."""
REST = "waiting and communication"


def compared(job: Observed, healthy: Window) -> Compared | None:
    """The job beside the healthy one; None where they have no steps to compare.

    Args:
        job: with the healthy job's steps before its own.
        healthy: that one, which keeps its own numbers of steps.
    """
    split, line = job.line.first_own, timeline(healthy)
    if not 0 < split < len(job.line.steps):
        return None
    before_ns, now_ns = (stats.median(job.line.job_period_ns[part])
                         for part in (slice(split), slice(split, None)))  # fmt: skip
    found = [*_phases(job, split, before_ns, now_ns), *_kernels(job, split, before_ns, now_ns)]
    least = LEAST * max(before_ns, now_ns)
    large = [one for one in found if abs(one.now_ns - one.before_ns) >= least]
    large.sort(key=lambda one: -abs(one.now_ns - one.before_ns))
    steps = int(line.steps[-split]), int(line.steps[-1])
    return Compared(healthy.job.job_id, steps, before_ns, now_ns, tuple(large[:MOST]))


def _phases(job: Observed, split: int, before_ns: float, now_ns: float) -> Iterator[Change]:
    """Own times, and what is left of the step."""
    if not job.own.phases:
        return
    for phase, own in job.own.items():
        before, now = _typical(own[:, :split]), _typical(own[:, split:])
        yield Change("phase", phase, before, now)
    before, now = _typical(job.total[:, :split]), _typical(job.total[:, split:])
    yield Change("rest", REST, max(before_ns - before, 0.0), max(now_ns - now, 0.0))


def _kernels(job: Observed, split: int, before_ns: float, now_ns: float) -> Iterator[Change]:
    """By the part that a kernel runs for of the median window: the first and the last of a job are
    cut off."""
    if job.kernels is None:
        return
    after = job.kernels.begins_ns >= job.line.begins_ns[split]
    if after.all() or not after.any():
        return
    for one in job.kernels:
        if is_computing(one.kernel):
            share = np.nan_to_num(one.count * one.mean_ns) / np.maximum(job.kernels.length_ns, 1.0)
            before, now = (_typical(share[:, some]) for some in (~after, after))
            yield Change("kernel", one.kernel, before * before_ns, now * now_ns)


def _typical(own: Floats) -> float:
    """The median over ranks of their median steps; 0 where nobody is in the phase."""
    return float(np.nan_to_num(stats.median(stats.row_medians(own))))
