"""A rise of the step time in two stages, where a jump alone, or a trend, does not fit.

Fault: steps that become longer at one step and again at another, as when batches grow by a plan.
To a search for one jump the other stage is noise with much memory, and it is no trend either.
Paper: none. Two jumps are fitted to the logarithm of step times, in blocks, by least squares; they
have to leave less beside them than the trend does (`gradual`), and each must be significant among
the steps up to the other.
Cost: a fit for each pair of splits; the number of blocks is bounded, so linear in steps.
Cannot see: three and more stages of the same height.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.detect.steps.gradual import BLOCKS, fitted_residual, in_blocks
from stepscope.diagnose.detect.steps.step_time import CLIP, LEAST_RISE, StepChange, regression
from stepscope.diagnose.numeric import stats
from stepscope.window import Floats

FINER = 3
"""Blocks for each of `gradual`: a jump within a block is neither. Our choice."""


def in_stages(series: Floats) -> StepChange | None:
    """The first of two lasting rises of the step time, against all that comes after it."""
    cuts = _two_jumps(series)
    if cuts is None:
        return None
    first, second = (regression(part) for part in (series[: cuts[1]], series[cuts[0] :]))
    if first is None or second is None:
        return None
    before, after = stats.median(series[: first.split]), stats.median(series[first.split :])
    if before <= 0 or after < LEAST_RISE * before:
        return None
    return StepChange(first.split, after / before, before, after, min(first.z, second.z))


def _two_jumps(series: Floats) -> tuple[int, int] | None:
    """The two steps at which the level changes, if that fits better than a trend."""
    _, blocks, width = in_blocks(series, FINER * BLOCKS, CLIP**2)
    if blocks.size < BLOCKS:
        return None
    first, second, left = _best_pair(blocks)
    if left >= fitted_residual(blocks):
        return None
    lead = len(series) - blocks.size * width
    return lead + first * width, lead + second * width


def _best_pair(blocks: Floats) -> tuple[int, int, float]:
    """The two splits of three levels that leave least, and the sum of squares that they leave."""
    total = np.concatenate(([0.0], np.cumsum(blocks)))
    first, second = np.triu_indices(blocks.size - 1, 1)
    first, second = first + 1, second + 1
    sums = total[first], total[second] - total[first], total[-1] - total[second]
    sizes = first, second - first, blocks.size - second
    kept = sum(part**2 / size for part, size in zip(sums, sizes, strict=True))
    best = int(np.argmax(kept))
    return int(first[best]), int(second[best]), float((blocks**2).sum() - kept[best])
