"""Steps that became longer because ranks have unequal work, in each step a different one the most.

Fault: samples of unequal length that nobody balances between replicas.
Paper: EROICA (2026), section 6.2, finds it by comparing the inputs of workers; no rule is given.
What differs (blame rule 5): a step waits for the rank with the most work, so it rises by how far
the largest own time in the passes lies above the peers', while the median stays. It is work and not
stalls if ranks that are slow in the forward pass of a step are slow in its backward pass as well.
Cost: two sorts per group and step. Cannot see: work unequal from the first step on.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from statistics import NormalDist

import numpy as np

from stepscope.diagnose.account.turns import changes
from stepscope.diagnose.account.work import two_passes
from stepscope.diagnose.detect.ranks.straggler import log_ratios
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import FALSE_ALARMS
from stepscope.trace import FORWARD
from stepscope.window import Floats, Ints

TOGETHER = 0.5
"""Correlation of a rank's two passes within steps. Of independent noise it is 0 within 0.1 from a
hundred rank-steps on; of work by the same samples above 0.9 (simulated, 2 % noise). Our
simulator."""
LEAST_PAIRS = 100
"""Rank-steps that a correlation needs: that of independent noise is then 0 within 0.1. Of fewer, it
must be above `TOGETHER` by what chance adds once in a thousand jobs. Statistics."""
FISHERS = 3
"""The error of a correlation of n pairs, transformed, is 1 / sqrt(n - 3) (Fisher, 1921)."""


def risen_excess_ns(job: Observed, split: int, culprits: Collection[int] = ()) -> float:
    """How much farther above its peers than before the slowest rank of a step is.

    Rows of culprits, which have a verdict, are left out. 0 if the slowest rank is mostly in one
    replica, or if it is not slow in both passes of a step.
    """
    passes, groups = two_passes(job), job.groups(FORWARD)
    if passes is None or not groups:
        return 0.0
    forward, backward = passes
    excess = _excess(forward + backward, groups)
    excess[sorted(culprits)] = np.nan
    if not changes(job, excess[:, split:]):
        return 0.0
    if not together(forward[:, split:], backward[:, split:], groups):
        return 0.0
    worst = np.nan_to_num(excess, nan=0.0).max(axis=0)
    return stats.median(worst[split:]) - stats.median(worst[job.line.warm_up : split])


def _excess(own: Floats, groups: list[Ints]) -> Floats:
    """Time above the median of the group, in ns; NaN for ranks in no group."""
    excess = np.full(own.shape, np.nan)
    for group in groups:
        excess[group] = own[group] - stats.column_median(own[group])
    return excess


def together(forward: Floats, backward: Floats, groups: list[Ints]) -> bool:
    """Whether ranks that are slow in one pass of a step are slow in the other as well."""
    one, other = (log_ratios(own, groups, 1.0) for own in (forward, backward))
    return are_related(one, other)


def are_related(one: Floats, other: Floats) -> bool:
    """Whether two quantities, where both are known, grow together beyond chance."""
    one, other = (part[np.isfinite(one) & np.isfinite(other)] for part in (one, other))
    if not (one != one[:1]).any() or not (other != other[:1]).any():
        return False  # what never differs has nothing in common
    return float(np.corrcoef(one, other)[0, 1]) >= _least(one.size)


def _least(pairs: int) -> float:
    """The correlation that shows common work: of few pairs, one that is surely above `TOGETHER`, by
    Fisher's transformation."""
    if pairs >= LEAST_PAIRS:
        return TOGETHER
    if pairs <= FISHERS:
        return math.inf
    error = 1 / math.sqrt(pairs - FISHERS)
    return math.tanh(math.atanh(TOGETHER) + NormalDist().inv_cdf(1 - FALSE_ALARMS) * error)
