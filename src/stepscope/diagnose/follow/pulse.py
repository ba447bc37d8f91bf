"""Whether a job goes on as it did: by its step times alone, which cost next to nothing to read.

A fault that nobody waits for deserves no verdict, and one that somebody waits for shows in the time
of the steps. So who follows a large job looks at all of it when that changes, and now and then
besides. Lossy: a change that costs less than `LEAST_CHANGE` waits for the next look of the latter
kind, and so does a culprit whose place another one takes at the same cost.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.detect.step_time import SLIGHT_RISE, SPIKE_RATIO
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.views.timeline import timeline
from stepscope.window import Floats, Window

NEWEST = 5
"""A change lasts if it does for five steps: who is slow for good is named after as many."""
LEAST_STEPS = 15
"""The newest, and twice as many to compare them with."""
LEAST_CHANGE = SLIGHT_RISE
"""Below two percent nobody would act."""


def newest_step(window: Window) -> int | None:
    """The newest step that some rank has finished."""
    steps = window.table("steps")
    return None if steps is None else int(steps.ints("step").max())


def step_ns(window: Window) -> float:
    """What an ordinary step takes."""
    return stats.median(_periods(window))


def is_steady(window: Window) -> bool:
    """Whether the newest steps took what those before them did; given the table `steps`."""
    periods = _periods(window)
    if periods.size < LEAST_STEPS:
        return False
    usual, newest = stats.median(periods[:-NEWEST]), periods[-NEWEST:]
    change = stats.median(newest) / usual
    return 1 / LEAST_CHANGE < change < LEAST_CHANGE and float(newest.max()) < SPIKE_RATIO * usual


def _periods(window: Window) -> Floats:
    """Of the steps that are over."""
    periods = timeline(window).job_period_ns[:-1]
    return np.asarray(periods[np.isfinite(periods) & (periods > 0)])
