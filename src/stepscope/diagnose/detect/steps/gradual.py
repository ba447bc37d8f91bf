"""A rise of the step time that takes many steps: a trend, where `step_time` looks for a jump.

Fault: steps that become longer and longer: machines that heat up, memory that fragments, a list or
a cache that grows.
Paper: none; ARGUS (2026), L1, compares two windows. The model is flat, rising, flat, fitted by
least squares to the logarithm of step times, in blocks and clipped as in `step_time`. Noise is what
is left beside the fit: beside two levels the rise itself would be taken for noise with memory.
Cost: a fit for each pair of ends; the number of blocks is bounded, so linear in steps.
Cannot see: a trend that set in before the first step; who or why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect.steps.step_time import CLIP, LEAST_RISE
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.thresholds import FALSE_ALARMS
from stepscope.window import Floats, Ints

BLOCKS = 20
"""Blocks of the series: their means even out single steps, and the ends of a rise are known to a
twentieth of it. Our choice."""
LEAST_BLOCKS = 16
"""Of a short series, of one step each. Of 3,000 series of 16 steps with 5 % noise none passes if
neighbours correlate by 0.5, and 2 % if by 0.8; of 20 steps 0.03 % and 1.4 %. Measured on random
series."""
GRADUAL = 4
"""Blocks that a rise must take; a shorter one is a jump, which `step_time` knows. Our choice."""
FITTED = 4
"""Numbers that are fitted to the blocks: two levels and two ends. Statistics."""
HALF = 0.5
"""Of what a jump leaves. Of 1,200 series of 30 to 100 steps with a jump by 1.2 or 1.5 and 5 % noise
0.8 % are said to be gradual; of 600 with a trend by 1.5, 74 % of 30 steps and 99 % of 100. Measured
on random series."""
BEYOND_NOISE = 6.0
"""The rise in standard deviations of what is left beside the fit, as for single long steps. What a
busy machine does for a while looks like a rise over some blocks, and leaves as much beside it: of
200 series of 40 steps with 5 % noise that is remembered for ten steps, 10 pass with 2 and 3 with 6;
of 100 steps and more, none. Our simulator."""


@dataclass(frozen=True)
class Trend:
    """Steps that become longer from column `first` to before `stop`, and stay so."""

    first: int
    stop: int
    before_ns: float
    after_ns: float
    lost_fraction: float
    """Of the time from `first` on: what it would not have taken at the level of before."""
    z: float

    @property
    def ratio(self) -> float:
        """How many times as long a step takes in the end."""
        return self.after_ns / self.before_ns


def gradual_rise(series: Floats) -> Trend | None:
    """The trend of a series of step times, if noise does not explain it."""
    logs, blocks, width = in_blocks(series)
    if not blocks.size:
        return None
    fit = _fit(blocks)
    needed = stats.threshold(FALSE_ALARMS, fit.tests, blocks.size - FITTED)
    scatter = float(np.std(fit.residual)) * math.sqrt(blocks.size / (blocks.size - FITTED))
    if fit.rise < max(math.log(LEAST_RISE), BEYOND_NOISE * scatter) or fit.z < needed:
        return None
    lead = len(series) - blocks.size * width
    first, stop = (lead + at * width for at in (fit.first, fit.stop))
    before = math.exp(fit.level)
    lost = 1 - before / float(np.exp(logs[first:]).mean())
    return Trend(first, stop, before, before * math.exp(fit.rise), max(lost, 0.0), fit.z)


def is_gradual(series: Floats) -> bool:
    """Whether a trend leaves less than half of what the best jump leaves: a jump has one end less
    to fit, and of noise alone neither leaves much less than the other."""
    blocks = in_blocks(series)[1]
    if not blocks.size:
        return False
    jumps = [sum(float(((part - part.mean()) ** 2).sum()) for part in np.split(blocks, [at]))
             for at in range(1, blocks.size)]  # fmt: skip
    return fitted_residual(blocks) < HALF * min(jumps)


def in_blocks(series: Floats, most: int = BLOCKS, clip: float = CLIP) -> tuple[Floats, Floats, int]:
    """The logarithms of step times, their means in blocks, and how many steps a block has; no
    blocks where the series is too short.

    Args:
        clip: longer steps count as this many times the median.
    """
    level, width, nothing = stats.median(series), max(len(series) // most, 1), np.zeros(0)
    if level <= 0 or len(series) < LEAST_BLOCKS:
        return nothing, nothing, width
    logs = np.log(np.clip(series, level / 100, clip * level))
    blocks = stats.block_means(logs[None], width)[0]
    return logs, blocks if np.isfinite(blocks).all() else nothing, width


def fitted_residual(blocks: Floats) -> float:
    """What the best trend leaves of some blocks, as a sum of squares."""
    return float((_fit(blocks).residual ** 2).sum())


@dataclass(frozen=True)
class _Fit:
    """The best of all models `level + rise * ramp`, where the ramp goes from 0 to 1."""

    first: int
    stop: int
    level: float
    rise: float
    residual: Floats
    z: float
    tests: int
    """Models that were compared."""


def _fit(blocks: Floats) -> _Fit:
    first, stop = np.triu_indices(blocks.size + 1, GRADUAL)
    ramps = _ramps(first, stop, blocks.size)
    centred = ramps - ramps.mean(axis=1, keepdims=True)
    power = (centred**2).sum(axis=1)
    rise = centred @ blocks / power
    best = int(np.argmax(np.where(rise > 0, rise**2 * power, 0.0)))
    level = float(blocks.mean() - rise[best] * ramps[best].mean())
    residual = blocks - level - rise[best] * ramps[best]
    # the standard error of a slope is that of a mean of `power` values
    noise = stats.noise_of(residual[None])
    error = noise.sigma * noise.memory / math.sqrt(power[best])
    return _Fit(int(first[best]), int(stop[best]), level, float(rise[best]), residual,
                float(rise[best]) / error, first.size)  # fmt: skip


def _ramps(first: Ints, stop: Ints, blocks: int) -> Floats:
    """For each pair of ends the mean height of each block, `[pair, block]`."""
    middle = np.arange(blocks) + 0.5
    height = (middle - first[:, None]) / (stop - first)[:, None]
    return np.asarray(np.clip(height, 0.0, 1.0))
