"""When a rise began that seems to take many steps, by the phase that grew at once.

What ranks wait for, and what scatters, blurs the beginning of a rise in the step times; a phase of
computing need not. If a phase jumps while the steps rise, by at least half of what they rise, the
rise began there, and was not gradual. Phases with waiting that nobody measured count as well: it is
asked when they grew, and not whose time it is.
Cost: one grid of durations. Cannot see: rises in no phase, or in communication.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.detect.steps.gradual import Trend
from stepscope.diagnose.detect.steps.step_time import BLOCK, StepChange, sudden
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.communication import communicates
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.phase_rows import phase_rows
from stepscope.window import Floats


def phase_jump(job: Observed, trend: Trend) -> StepChange | None:
    """The change of the step times where a phase jumped during the trend; None if none did.

    Args:
        trend: of the steps after warming up.
    """
    rise_ns, skip = trend.after_ns - trend.before_ns, job.line.warm_up
    found = [
        one
        for series in _computing(job)
        if (one := sudden(series[skip:])) is not None
        and trend.first <= one.split <= trend.stop
        and _is_at_once(series[skip:], one)
    ]
    best = max(found, key=lambda one: one.after_ns - one.before_ns, default=None)
    if best is None or best.after_ns - best.before_ns < HALF * rise_ns:
        return None
    period, split = job.line.job_period_ns, best.split + skip
    before_ns, after_ns = stats.median(period[skip:split]), stats.median(period[split:])
    return StepChange(split, after_ns / before_ns, before_ns, after_ns, best.z)


def _is_at_once(series: Floats, one: StepChange) -> bool:
    """Whether the few steps on both sides of a change differ by most of it: two levels fit a slope
    as well, but beside its middle it has hardly risen."""
    before, after = series[: one.split][-BLOCK:], series[one.split :][:BLOCK]
    return stats.median(after) - stats.median(before) > HALF * (one.after_ns - one.before_ns)


def _computing(job: Observed) -> list[Floats]:
    """How long the typical rank is in each phase but communication, by step."""
    rows = phase_rows(job.window, job.line)
    if rows is None:
        return []
    names = [name for name in rows.names.values if not communicates(name)]
    lasted = rows.grids(rows.duration, names)
    return [series for one in lasted if np.isfinite(series := stats.column_median(one)).all()]
