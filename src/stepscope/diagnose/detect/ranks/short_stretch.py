"""Ranks that are slow for some steps in a row, too few for L2.

Fault: a device that throttles for a minute, a program that ran beside one rank for ten steps.
Paper: ARGUS (2026), section 9.4, where L2 dilutes such episodes in its windows. What differs: the
evidence decides how long is long enough. The worst run of single steps must be beyond noise even if
each run of each length is a test; take longer than any passing disturbance; be high in most of its
steps; and stand out from all that innocent peers do over as many steps. And it must have cost a
part of the whole job that is worth a verdict.
Cost: as L2, on single steps. Cannot see: two short stretches of one rank (`transient` counts them).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.diagnose.detect.ranks.straggler import (
    PAD,
    PAD_NS,
    Straggler,
    effect_floor,
    innocents,
    least_steps,
    log_ratios,
    stands_out,
    sure_in_pairs,
)
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.thresholds import FALSE_ALARMS, HALF, LEAST_COST_ONCE
from stepscope.window import Floats, Ints, Mask

LEAST_STEPS = 10
"""With fewer steps the noise cannot be estimated, as in `transient_ranks`. Our simulator."""
IN_A_ROW = 4
"""Steps of a run: checkpoints and evaluations make one step or two long. Our choice."""
LASTING_NS = 10**9
"""The shortest run takes a second longer: less happens to any process on a busy machine, as in
`transient`. Our simulator."""
EFFECT = 0.3
"""Smallest ratio of the shortest run: as of a pair in `straggler_brief`, where little else shows
that it is the rank and not the moment. Our simulator.

This, the second, and the part of the job that a run must cost shrink with the square root of its
length, as the standard error of what independent moments add up to does: after 26 steps in a row it
is the rank that was slow."""
LEAST_EFFECT = 0.1
"""Smallest ratio of any run, as in `straggler_brief`. Our simulator."""
WANDERING = 4.0
"""Standard deviations of a single step: noise that wanders slowly may lift several steps in a row
by less, of 1,440 healthy series with 3 to 20 % noise as often as before. Up to `EFFECT`. Measured
on random series."""
PERSISTENCE = 0.8
"""This part of the steps must show half the effect on their own, as in `straggler_brief`. Our
simulator."""


def stragglers(
    own: Floats, groups: Sequence[Ints], period_ns: float, phase: str | None, tests: int
) -> list[Straggler]:
    """Ranks whose own time in one phase exceeds their peers' for some steps in a row.

    The arguments are those of `straggler.stragglers`.
    """
    steps = own.shape[1]
    if steps < LEAST_STEPS or not groups or period_ns <= 0:
        return []
    pad = max(PAD * period_ns, PAD_NS)
    excess = log_ratios(own, groups, pad)
    noise_of_step, most_effect = stats.step_noise(excess), float(np.log1p(EFFECT))
    least = max(effect_floor(noise_of_step), LEAST_EFFECT)
    worst = stats.worst_stretch(excess, least / 2)
    passing = np.sqrt(IN_A_ROW / np.maximum(worst.length, IN_A_ROW))
    wandering = min(WANDERING * noise_of_step, most_effect)
    floor = np.maximum(max(least, wandering), most_effect * passing)
    most = max(HALF * steps, least_steps(steps) - 1)  # longer ones are L2's
    short = worst.length <= most
    slow = (worst.length >= IN_A_ROW) & (worst.mean >= floor)
    if not (slow & short).any():  # mostly: what follows takes longer
        return []
    noise = stats.pooled_noise(excess, least / 2, worst)
    runs = steps * (steps + 1) // 2
    needed = stats.threshold(FALSE_ALARMS, tests * runs, noise.samples)
    inside = worst.inside(steps)
    middle = stats.row_medians(np.where(inside, excess, np.nan))
    effect = np.fmin(worst.mean, middle)  # a single long step lifts the mean alone
    z = effect / noise.of_mean(worst.length)
    high = (inside & (excess > effect[:, None] / 2)).sum(axis=1)
    more_ns = _more_ns(own, excess, inside, pad)
    slow &= (effect >= floor) & (z >= needed)
    slow &= high >= PERSISTENCE * worst.length
    found = (
        slow & short & (more_ns >= max(LASTING_NS, LEAST_COST_ONCE * steps * period_ns) * passing)
    )
    if not found.any():
        return []
    found &= stands_out(innocents(own, groups, pad, slow), groups, worst)
    found &= sure_in_pairs(excess, groups, worst, z / needed)
    return [
        Straggler(int(row), phase, int(worst.first[row]), int(worst.stop[row]),
                  float(effect[row]), float(z[row]), needed)
        for row in np.flatnonzero(found)
    ]  # fmt: skip


def _more_ns(own: Floats, excess: Floats, inside: Mask, pad_ns: float) -> Floats:
    """By how much longer than its peers each rank takes in its run, in all."""
    above = (own + pad_ns) * -np.expm1(-np.nan_to_num(excess))
    return np.asarray(np.where(inside, np.nan_to_num(above), 0.0).sum(axis=1))
