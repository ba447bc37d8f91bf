"""What pauses that were recorded cost: how much longer the steps with a pause take than those
without.

The time of a pause is measured, and so is that of its step; no model of who waits for whom has to
lie between them. Phases of devices do not contain a pause of the host, and whoever computes a cost
from phases finds none. A pause costs no more than it lasts, and what a host that runs ahead of its
device makes up for costs nothing: then steps are not longer.
Cost: a running median of the steps. Cannot see: what pauses cost where every step has one of the
same length.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.detect.in_turns import lengthening
from stepscope.diagnose.detect.straggler import FALSE_ALARMS
from stepscope.diagnose.detect.transient import poisson_tail
from stepscope.diagnose.numeric import stats
from stepscope.window import Floats, Ints, Mask

LEAST_STEPS = 5
"""As many steps with a pause, and without, are needed to know the usual step time; with fewer
without one it follows from how steps vary with their pauses. Our simulator."""
BEYOND = 3.0
"""Standard deviations from which on a step is longer than usual. Our simulator."""
NEAR = 11
"""Steps without a pause whose median is the usual step around one with it: a job may become slower
meanwhile. Our choice."""


def lost_ns(period: Floats, longest: Floats) -> Floats:
    """What each step loses to its longest pause; 0 in all if steps do not get longer with pauses.

    Args:
        period: how long each step takes; NaN where that is unknown.
        longest: the longest pause of each step; 0 without one.
    """
    known = np.isfinite(period)
    paused, without = (longest > 0) & known, (longest <= 0) & known
    if paused.sum() < LEAST_STEPS:
        return np.zeros_like(longest)
    if without.sum() < LEAST_STEPS:
        return np.where(paused, longest * lengthening(np.nan_to_num(period), longest), 0.0)
    longer = period - _usual_around(period, np.flatnonzero(without))
    noise = max(stats.sigma(longer[without]), stats.NOISE_FLOOR * stats.median(period[without]))
    long = longer > BEYOND * noise
    if _by_chance(long[paused], long[without]) > FALSE_ALARMS:
        return np.zeros_like(longest)
    return np.where(paused, np.minimum(longer, longest), 0.0)


def _by_chance(paused: Mask, without: Mask) -> float:
    """The probability that so many steps with a pause are long if pauses had nothing to do with
    it. Something else may hide what they cost in a part of the steps."""
    rate = (without.sum() + 1) / (without.size + 1)
    return poisson_tail(int(paused.sum()), rate * paused.size)


def _usual_around(period: Floats, without: Ints) -> Floats:
    """How long each step would have been: the median of the nearest steps without a pause."""
    near = min(NEAR, without.size)
    medians = stats.row_medians(np.lib.stride_tricks.sliding_window_view(period[without], near))
    first = np.searchsorted(without, np.arange(period.size)) - near // 2
    return np.asarray(medians[np.clip(first, 0, medians.size - 1)])
