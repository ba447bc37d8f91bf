"""Ranks of two speeds: which of those that do equal work are the slower of two separate clusters.

A median of the peers shows what is normal as long as few are slow. Where many are, the fast ones
show what is possible with the same work, however many the others are.

The two clusters are those on both sides of the widest gap between levels, each within its group.
Their distance must exceed what chance does with any way to divide the ranks in two: for each of
these alone Student's statistic t with n degrees of freedom exceeds c with a probability of at most
(1 + c^2 / n)^(-n / 2), for Gaussian levels, and the probabilities of all ways are added
(Bonferroni). Clusters that are just some of the hosts are one of fewer ways. What is usual counts
as some observed ranks, because a few say little about their spread.
Cost: one sort. Cannot see: a fast cluster of up to a quarter of the ranks, which may be the unusual
one; three speeds; a single slow rank, which the median of its peers shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.peers import above_peers
from stepscope.window import Floats, Ints, Mask

ODD = 0.25
"""A fast cluster of up to this part of the ranks may be the unusual one, with less to do. Our
choice, as `straggler_brief.SUSPECTS`."""
SEVERAL = 2
"""Ranks of a slow cluster. Statistics."""
SPREAD, PRIOR = 0.02, 2.0
"""By how much healthy ranks differ permanently where nothing is known, as a log-ratio, and how many
ranks that knowledge is worth. Measured on real data (0.005 in `shared/real`, 0.01
to 0.02 in our lab)."""
MOST_POWER = 100.0
"""Of e: a limit beyond every distance. Resolution of floats."""


def slow_side(
    levels: Floats, groups: Sequence[Ints], hosts: Sequence[Ints], alarms: float
) -> Mask:  # fmt: skip
    """The rows of the slow cluster; none where there are no two.

    Args:
        levels: the logarithm of each row's typical time; NaN unknown.
        groups: rows of ranks that do equal work.
        hosts: rows of the ranks of each host.
        alarms: the part of healthy jobs in which there may seem to be two.
    """
    groups = [known for group in groups if (known := group[np.isfinite(levels[group])]).size > 1]
    slow = np.zeros(levels.size, np.bool_)
    if groups:
        above = np.concatenate([levels[group] - levels[group].min() for group in groups])
        rows = np.concatenate(groups)[above_widest_gap(above, int(ODD * above.size) + 1, SEVERAL)]
        slow[rows] = True
    if slow.any() and not are_apart(levels, groups, slow, _log_chance(groups, hosts, slow, alarms)):
        slow[:] = False
    return slow


def above_fast(values: Floats, groups: Sequence[Ints], slow: Mask) -> Floats:
    """How far every value of `[rank, step]` lies above the median of its peers: of the fast ones,
    where a group has ranks of both speeds. A rank that alone is fast is its own measure."""
    parts = [group for group in groups if slow[group].any() and not slow[group].all()]
    whole = [group for group in groups if slow[group].all() or not slow[group].any()]
    found = above_peers(values, [*whole, *(group[~slow[group]] for group in parts)])
    for group in parts:
        fast, late = group[~slow[group]], group[slow[group]]
        found[late] = values[late] - stats.column_median(values[fast])
        if fast.size == 1:
            found[fast] = values[fast] * 0.0
    return found


def above_widest_gap(values: Floats, below: int, above: int) -> Mask:
    """Which values lie above the widest gap that leaves at least so many on either side."""
    found, order = np.zeros(values.size, np.bool_), np.argsort(values, kind="stable")
    gaps = np.diff(values[order])[below - 1 : max(values.size - above, 0)]
    if gaps.size and gaps.max() > 0:
        found[order[below + int(gaps.argmax()) :]] = True
    return found


def _log_chance(groups: Sequence[Ints], hosts: Sequence[Ints], slow: Mask, alarms: float) -> float:
    """The logarithm of the chance that this way to divide the ranks may have: one of 2^ranks, or of
    2^hosts if every host is on one side; each kind of way has half of the alarms."""
    rows = np.concatenate(groups)
    compared = np.zeros(slow.size, np.bool_)
    compared[rows] = True
    units = [known for host in hosts if (known := host[compared[host]]).size]
    whole = all(slow[unit].all() or not slow[unit].any() for unit in units)
    aligned = whole and sum(unit.size for unit in units) == rows.size
    return math.log(alarms) - math.log(2) * (1 + (len(units) if aligned else rows.size))


def are_apart(levels: Floats, groups: Sequence[Ints], slow: Mask, log_chance: float) -> bool:
    """Whether two clusters of ranks are farther apart than by chance: regression on the side,
    beside a level of each group.

    Args:
        levels, groups: those of `slow_side`, of known levels only.
        slow: the rows on the slower side.
        log_chance: the logarithm of the chance that this way to divide the ranks may have.
    """
    if not groups:
        return False
    level = np.concatenate([levels[group] - levels[group].mean() for group in groups])
    side = np.concatenate([slow[group] - slow[group].mean() for group in groups])
    weight, freedom = float(side @ side), level.size - len(groups) - 1
    if weight <= 0:
        return False
    apart, known = float(side @ level) / weight, PRIOR + freedom
    squares = float(np.square(level - apart * side).sum()) + PRIOR * SPREAD**2
    power = min(-2 * log_chance / known, MOST_POWER)
    return apart * math.sqrt(weight) > math.sqrt(squares * math.expm1(power))
