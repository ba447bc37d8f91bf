"""ARGUS level 3: the rank on which a kernel takes longer than on ranks that do equal work.

Fault: a device, or the path to it, on which some kernels or copies run slower than on its peers'.
Paper: ARGUS (2026), section 6.2. Symbols: F -> `Mixtures.cdfs`, W1 -> `mean_distances`, alpha as
there (`as_published`): a rank is anomalous if its mean distance to all others lies above
Q3 + alpha (Q3 - Q1).
What differs: mean distances of healthy ranks are skewed, so that this fence flags one rank in
twenty per kernel, fast ones as well, any rank where all others are equal, and none where 30 % are
slow (algorithm notes, section 4). So the default takes the log-ratio of a typical execution to the
median of the other members, which has a sign, against the scatter between ranks and between
windows, both with a floor. Its worst stretch of windows must be mostly high, significant over all
ranks, kernels and windows, large, 1.5 times what any innocent rank shows, and three times what any
rank falls short: noise has two sides, a fault has one. Mean distances then confirm it: they see the
whole distribution, which the typical execution does not.
Cost: one sort per group and window; mean distances in the groups of suspects.
Cannot see: what is rarer than 1 % of a mode; a fault of most members; communication, which waits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect.ranks.straggler import ABOVE_PEERS, PERSISTENCE, log_ratios
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.mixtures import Grid, mean_distances
from stepscope.diagnose.thresholds import FALSE_ALARMS
from stepscope.diagnose.views.kernel_times import KernelTimes
from stepscope.window import Floats, Ints, Mask

EFFECT = 0.03
"""Smallest ratio that is believed over several windows (algorithm notes, section 4: no false rank,
1.05 always found). Our simulator."""
BRIEF_EFFECT = 0.1
"""The same over one or two windows, which may be an episode: as in `straggler_brief`. Our
simulator."""
LEAST_WINDOWS = 3
"""A shorter stretch that is over was an episode; one that still goes on may be young. Our
simulator."""
LEAST_GROUP = 4
"""Of two members either may be the odd one, and of three the slow one affects the others' median.
Statistics."""
BEYOND = 3.0
"""Times what any rank falls short of its peers. Of noise with tails as Student's t of 3 degrees of
freedom the largest value exceeds the least by so much in one of 28 cases, with 1.5 in one of 4.
Statistics."""


@dataclass(frozen=True)
class Slower:
    """A rank (row of the grid) that takes longer than its peers in windows [first, stop)."""

    row: int
    first: int
    stop: int
    effect: float
    """Mean log-ratio to the peers."""
    z: float
    needed: float
    usual: Floats
    """What its peers take, in each of these windows."""


def slower(values: Floats, groups: Sequence[Ints], tests: int) -> list[Slower]:
    """Ranks whose value in `[rank, window]` exceeds that of the others over a stretch of windows.

    Args:
        values: above 0; NaN unknown.
    """
    groups = [group for group in groups if len(group) >= LEAST_GROUP]
    if not groups or not values.size:
        return []
    excess = log_ratios(values, groups, 0.0)
    worst = stats.worst_stretch(excess, math.log1p(EFFECT) / 2)
    z, needed = _significance(excess, worst, tests)
    found = (z >= needed) & (worst.mean >= _floor(worst.length)) & _persists(excess, worst)
    found &= (worst.length >= LEAST_WINDOWS) | (worst.stop == excess.shape[1])
    found &= worst.mean >= ABOVE_PEERS * float(worst.mean[~found].max(initial=0.0))
    innocent = _innocents(values, groups, found)
    found &= worst.mean >= BEYOND * _lacking(innocent, worst.length, found)
    return [
        Slower(row, first, stop, float(worst.mean[row]), float(z[row]), needed,
               values[row, first:stop] * np.exp(-excess[row, first:stop]))
        for row, first, stop in zip(*(column[found].tolist() for column in (
            np.arange(len(found)), worst.first, worst.stop)), strict=True)
    ]  # fmt: skip


def _innocents(values: Floats, groups: Sequence[Ints], found: Mask) -> Floats:
    """Log-ratios of the ranks that were not found, among themselves: compared with many slow ranks
    they would look fast."""
    well = [group[~found[group]] for group in groups]
    return log_ratios(values, [group for group in well if len(group) > 1], 0.0)


def _lacking(excess: Floats, length: Ints, found: Mask) -> Floats:
    """By how much any rank falls short of its peers over as many windows as each stretch has.

    Faults make ranks slow, noise makes them slow and fast: the fast show how far it reaches,
    however heavy its tails.
    """
    short = np.minimum(np.nan_to_num(excess), 0.0)
    largest = {int(one): stats.largest_mean(short, int(one)) for one in np.unique(length[found])}
    return np.array([largest.get(int(one), 0.0) for one in length])


def _significance(excess: Floats, worst: stats.Stretches, tests: int) -> tuple[Floats, float]:
    """How far each stretch rises above the scatter, and how far it may rise by chance.

    Ranks differ for good as well as from window to window, and both count.
    """
    level = stats.row_medians(excess)
    between = max(stats.sigma(level), stats.NOISE_FLOOR)
    within = np.zeros(len(level))
    if excess.shape[1] > 1:
        within = stats.pooled_noise(excess, math.log1p(EFFECT) / 2, worst).of_mean(worst.length)
    known = int(np.isfinite(level).sum())
    needed = stats.threshold(FALSE_ALARMS, tests * excess.shape[1], known)
    return worst.mean / np.hypot(between, within), needed


def _floor(length: Ints) -> Floats:
    several = length >= LEAST_WINDOWS
    return np.where(several, math.log1p(EFFECT), math.log1p(BRIEF_EFFECT))


def _persists(excess: Floats, worst: stats.Stretches) -> Mask:
    """Whether most windows of the stretch are high on their own."""
    high = (excess > (_floor(worst.length) / 2)[:, None]) & worst.inside(excess.shape[1])
    persists: Mask = np.asarray(high.sum(axis=1) >= PERSISTENCE * np.maximum(worst.length, 1))
    return persists


def distance_of(times: KernelTimes, group: Ints, row: int, window: int) -> tuple[float, float]:
    """A rank's mean distance to the others of its group, and the median of the others' own."""
    mixtures, ran = times.among(group, window)
    if row not in ran or ran.size < 2:
        return 0.0, 0.0
    means = mean_distances(mixtures, Grid.following(mixtures))
    return float(means[ran == row][0]), float(np.median(means[ran != row]))
