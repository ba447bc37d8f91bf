"""By how much the own time of ranks without a verdict rose: that much is no culprit's."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.window import Ints, Mask


def others_rise_ns(
    job: Observed, culprits: Collection[int], before: Mask | Ints, after: Mask | Ints
) -> float:  # fmt: skip
    """Per step, what the median of the other ranks does longer; 0 where nobody is left or known.

    Args:
        culprits: ranks with a verdict.
        before, after: columns to compare.
    """
    others = ~np.isin(job.line.ranks, [*culprits])
    if not others.any() or not job.own.phases:
        return 0.0
    own = job.total[others]
    rise = stats.row_medians(own[:, after]) - stats.row_medians(own[:, before])
    return max(stats.median(rise), 0.0)
