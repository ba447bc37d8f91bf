"""Steps of two lengths in turns: which of them belong to the longer kind.

    logarithms, sorted     ..........      |      ......
                              short     widest gap    long

The two kinds are those on both sides of the widest gap. They are apart if their distance exceeds
what chance does with any way to divide the steps in two (`two_speeds.are_apart`), and if half of
it is empty: steps that drift, or whose noise has a heavy tail, lie everywhere in between. Long
steps before the first short one and after the last one are left out: what becomes longer once and
stays so is a change of level, and no turn.
Cost: one sort. Cannot see: three lengths; two lengths whose noise is wider than their distance.
"""

from __future__ import annotations

import math

import numpy as np

from stepscope.diagnose.numeric.two_speeds import above_widest_gap, are_apart
from stepscope.diagnose.thresholds import FALSE_ALARMS
from stepscope.window import Floats, Mask

LEAST_STEPS = 20
"""Below that one in a hundred series of even noise has such a gap. Statistics."""
LEAST_LONG = 5
"""Long steps, as in `combs.LEAST_HITS`. Statistics."""
EMPTY = 0.5
"""Part of the distance in which no step lies. Of 1,000 random series of 30 and 80 steps (heavy
tails, even noise, drifts, waves) none or one has two kinds then, of series of 20 steps up to five.
Statistics."""


def long_kind(series: Floats) -> Mask:
    """The steps of the longer of two kinds that come in turns; none where there are no two."""
    level = np.log(np.maximum(np.nan_to_num(series), 1.0))
    long = above_widest_gap(level, LEAST_LONG, LEAST_LONG)
    if level.size >= LEAST_STEPS and long.any() and _are_two(level, long):
        return _in_turns(long)
    return np.zeros(series.size, np.bool_)


def _are_two(level: Floats, long: Mask) -> bool:
    distance = float(level[long].mean() - level[~long].mean())
    empty = float(level[long].min() - level[~long].max())
    log_chance = math.log(FALSE_ALARMS) - math.log(2) * level.size
    return empty >= EMPTY * distance and are_apart(level, [np.arange(level.size)], long, log_chance)


def _in_turns(long: Mask) -> Mask:
    """Those between two short steps."""
    short = np.flatnonzero(~long)
    between = (np.arange(long.size) > short[0]) & (np.arange(long.size) < short[-1])
    return np.asarray(long & between)
