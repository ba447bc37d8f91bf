"""Abnormal operators: which took much longer than at the same place in other steps.

Paper: Holmes (2025), section 4.2.2, trains a random forest on a log's durations, their mean,
standard deviation, z-score and quartiles, and the step's time. A forest knows the jobs that it was
trained on (`detect.published.holmes_forest` has it), so here a robust rule decides. It keeps what
the paper wants of the forest: an increase counts in relation to the step, so that one from 0.02 to
1 ms is nothing and one from 1 to 3 s is.

    abnormal = duration - median > max(MADS * sigma of the place, RATIO * median, SHARE * step)

Cost: two medians per place, once; then one comparison per operator.
Cannot see: what was abnormal in half of the steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.numeric.stats import MAD_TO_SIGMA
from stepscope.window import Floats, Mask

MADS = 6.0
"""As for long steps (`step_time.SPIKE_MADS`). Our simulator."""
RATIO = 0.1
"""Less is within the noise of transfers. Our simulator."""
SHARE = 0.002
"""Of a typical step, at least: a hundred such operators make a step a fifth longer. Our choice."""


@dataclass(frozen=True)
class Usual:
    """What operators usually take, `[place]` in ns, and from which excess on one is abnormal."""

    median_ns: Floats
    limit_ns: Floats

    @classmethod
    def of(cls, values_ns: Floats, step_ns: float) -> Usual:
        """Learns it from `[place, step]`; places without values have NaN, and nothing there is
        abnormal."""
        middle = middles(values_ns)
        sigma = MAD_TO_SIGMA * middles(np.abs(values_ns - middle[:, None]))
        least = np.maximum(RATIO * middle, SHARE * step_ns)
        return cls(middle, np.maximum(MADS * sigma, least))

    def abnormal(self, values_ns: Floats) -> Mask:
        """`[place, step]`: which values are abnormal; unknown ones are not."""
        return np.asarray(values_ns > (self.median_ns + self.limit_ns)[:, None])


def middles(values: Floats) -> Floats:
    """The median of each row's known values (of an even number the lower one); NaN: none."""
    known = np.isfinite(values)
    if known.all() and values.shape[1]:
        at = (values.shape[1] - 1) // 2
        return np.asarray(np.partition(values, at, axis=1)[:, at])
    count = known.sum(axis=1)
    ordered = np.sort(values, axis=1)
    at = np.maximum((count - 1) // 2, 0)
    if not values.shape[1]:
        return np.full(len(values), np.nan)
    return np.asarray(np.take_along_axis(ordered, at[:, None], axis=1)[:, 0])
