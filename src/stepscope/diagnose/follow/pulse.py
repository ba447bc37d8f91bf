"""Whether a job's step times are steady; reading only these is cheap.

A fault that costs time shows in the step times. So a live diagnosis of a large job reads all of its
data only when the step times change, and otherwise from time to time. Lossy: a change that costs
less than `LEAST_CHANGE` is found only at the next full diagnosis, and so is a change of culprit at
the same cost.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.detect.steps.step_time import SLIGHT_RISE, SPIKE_RATIO
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.views.timeline import timeline
from stepscope.window import Floats, Window

NEWEST = 5
"""A change counts if it lasts for five steps; a permanently slow rank is reported after as many.
Our simulator."""
LEAST_STEPS = 15
"""The newest five steps, and ten to compare them with. Our simulator."""
LEAST_CHANGE = SLIGHT_RISE
"""A change of less than two percent is not worth acting on. Our simulator."""


def newest_step(window: Window) -> int | None:
    """The newest step that any rank has finished."""
    steps = window.table("steps")
    return None if steps is None else int(steps.ints("step").max())


def step_ns(window: Window) -> float:
    """The median step time."""
    return stats.median(_periods(window))


def is_steady(window: Window) -> bool:
    """Whether the newest steps took as long as those before them; needs the table `steps`."""
    periods = _periods(window)
    if periods.size < LEAST_STEPS:
        return False
    usual, newest = stats.median(periods[:-NEWEST]), periods[-NEWEST:]
    change = stats.median(newest) / usual
    return 1 / LEAST_CHANGE < change < LEAST_CHANGE and float(newest.max()) < SPIKE_RATIO * usual


def _periods(window: Window) -> Floats:
    """The times of completed steps."""
    periods = timeline(window).job_period_ns[:-1]
    return np.asarray(periods[np.isfinite(periods) & (periods > 0)])
