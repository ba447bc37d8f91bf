"""ARGUS level 1: when the step times of the job as a whole were abnormal.

Fault: spikes (jitter) and a lasting rise (regression) of the step time.
Paper: ARGUS (2026), section 6.1 and appendix B, "L1". Symbols: W -> `width`, theta -> `ratio`,
b -> `baseline`, mu_L, mu_R -> `before`, `after`, t -> `split`. As published: `published.argus_l1`.
What differs: the published rules misfire (algorithm notes, section 4): with 3 % noise max/min > 1.2
in 36 % of healthy series and at every checkpoint; rare spikes hide a step change, and 5 % noise
makes 7 % false ones. Hence the default: `jitter` is beyond median + 6 MAD outside the job's own
schedule, `regression` works on values clipped at 1.3 times the median, in blocks, against noise
whose memory counts. A synchronous job has one step series, so this runs once per job and not per
rank.
Cost: linear in steps. Cannot see: what was slow from the start, nor who or why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.combs import REGULAR
from stepscope.diagnose.thresholds import FALSE_ALARMS, FAST
from stepscope.window import Floats, Ints, Mask

LEAST_RISE = 1.1
"""Smallest rise that is a regression; no paper names one. Our simulator."""
SLIGHT_RISE = 1.02
"""Smallest rise that counts together with its cause: below two percent nobody would act. Our
simulator."""
SPIKE_MADS = 6.0
"""Limit of a spike: median + 6 MAD raises at most 0.5 % of healthy series (algorithm notes, section
4). Our simulator."""
SPIKE_RATIO = 1.5
"""Smallest ratio of a spike: half a step more, however tight the series is. Our simulator."""
CLIP = 1.3
"""Clipping at 1.3 medians finds 1.1x below spikes in all series (algorithm notes, section 4). Our
simulator."""
MANY = 0.8
"""Where a fifth of the steps is longer, clipping at this quantile of theirs is tried as well: a
rise by 6 in the last third of 60 steps with 20 % noise that remembers (0.5) is found in 41 % at 1.3
medians, and always at this quantile; healthy series have as few rises (at most 1 %). By 10 in the
last third of 120 steps, one in ten of which is twice as long: it begins 0.3 to 1.5 steps from where
it does at 1.3 medians, and 0.0 here. Measured on random series."""
SEGMENT, LEAST_SEGMENT = 50, 20
SEGMENT_SHARE = 0.2
"""Segments of 50 steps (algorithm notes), in short windows a fifth of the steps, never below 20:
four blocks; fewer have no scatter to speak of. Our simulator."""
BLOCK = 5
"""Steps per block of the change point: memory of the noise shows between blocks. Our simulator."""
BRIEF_BLOCK, BRIEF_SEGMENT, BRIEF_ALARMS = 2, 8, 1e-4
"""The same for series of less than two segments, in which memory shows less. Of 24 steps with a
rise by 1.2 and 3 % noise it finds 97 %; of healthy series with 5 % noise 0.05 % have one if
neighbours correlate by 0.5, and 0.6 % if by 0.8. Measured on random series."""
FEW_SEGMENTS = 3
"""Series of fewer segments are judged in blocks of two steps, too: eight to eleven blocks of five
tell too little of their own scatter. Of 300 series of 42 steps with a rise by 1.1 in the middle
and 3 % noise blocks of five find 60 %, and of two 86 %; of 58 steps, 87 and 97 %. Of 1,500 healthy
series blocks of two find a rise in at most 0.07 % if neighbours correlate by up to 0.5 (of five
0.13 %), and in 0 and 0.9 % if by 0.8 (of five 0.5 and 0.6 %). Measured on random series."""
SUDDEN = 6.0
"""Standard deviations of a single step, at least, by which steps become longer at once, and not the
mean of many: noise that remembers does not do that. Of 600 series of 12, 16, 35 and 100 steps with
5 % noise none passes if neighbours correlate by 0 or 0.5, and at most 3 if by 0.8 or 0.95. Measured
on random series."""
LEAST_EITHER, LEAST_SUDDEN = 3, 10
"""Steps before a sudden rise, after it, and in all: the three fastest of ten steps come first in
one of 120 series by chance alone. Statistics."""
BETWEEN_JOBS, BRIEF_JOBS = 3.0, 40
"""The same from one job to another, whose place need not be searched for; with fewer steps in all
`SUDDEN` as before. Of 400 pairs of healthy series of 6 to 60 steps with 3 % noise at most 1 has a
rise, with 10 % noise 1 % if neighbours do not correlate, and 4 % if by 0.8 (10 % of three steps
each). Measured on random series."""
LONGER = 0.8
"""Of all pairs of steps, one of each job, so many must be longer in this job: a few of six may be
those in which a job warms up. Our choice."""
TAIL = 0.1
"""Steps on either side that may be as long as those of the other side: single long steps and
unfinished ones. Our choice."""
LEAST_BLOCKS = 6
"""Two blocks of an episode, and four of usual steps around it. Statistics."""
ROUND_BY = 5
"""People choose intervals that this divides, or powers of two. Our choice."""


@dataclass(frozen=True)
class Spikes:
    """Columns in which the job jittered, and what a normal step takes."""

    columns: Ints
    baseline_ns: float


@dataclass(frozen=True)
class StepChange:
    """The column from which steps take `ratio` times as long."""

    split: int
    ratio: float
    before_ns: float
    after_ns: float
    z: float


def jitter(series: Floats, steps: Ints, warming: int = 0) -> Spikes:
    """Steps beyond median + 6 MAD that no schedule explains.

    An unbroken run of spikes among the first `warming` steps is the job's start and no jitter.
    """
    baseline = stats.median(series)
    spikes = long_steps(series)
    spikes = spikes[(spikes != np.arange(spikes.size)) | (spikes >= warming)]
    spikes = spikes[~scheduled(steps[spikes], steps)] if baseline > 0 else spikes[:0]
    return Spikes(spikes, baseline)


def long_steps(series: Floats) -> Ints:
    """Columns with a step time beyond median + 6 MAD, on either side of a lasting rise: steps that
    are as long as most since then are not long by themselves."""
    change = regression(series)
    parts = (0, series.size) if change is None else (0, change.split, series.size)
    return np.concatenate([_beyond(series[begin:stop]) + begin
                           for begin, stop in pairwise(parts)])  # fmt: skip


def _beyond(series: Floats) -> Ints:
    baseline = stats.median(series)
    spread = max(stats.sigma(series), stats.NOISE_FLOOR * baseline)
    limit = max(baseline + SPIKE_MADS * spread, SPIKE_RATIO * baseline)
    return np.flatnonzero(np.nan_to_num(series) > limit)


def scheduled(spikes: Ints, steps: Ints) -> Mask:
    """Which spikes recur every so many steps: checkpoints, evaluation, logging."""
    explained = np.zeros(spikes.size, np.bool_)
    for period in np.unique(np.diff(spikes)).tolist():
        if period > 1:
            explained |= recurring(spikes, steps, period, 2 if is_round(period) else 3)
    return explained


def is_round(interval: int) -> bool:
    """Whether people would choose such an interval; any two spikes have some interval."""
    return interval > 1 and (interval % ROUND_BY == 0 or interval & (interval - 1) == 0)


def recurring(spikes: Ints, steps: Ints, period: int, least: int) -> Mask:
    """Which spikes return every `period` steps; none if they do not, or not `least` times."""
    phase = np.bincount(spikes % period).argmax()
    slots = steps[(steps % period == phase) & (steps >= spikes[0]) & (steps <= spikes[-1])]
    regular = slots.size >= least and np.isin(slots, spikes).mean() >= REGULAR
    return np.asarray(spikes % period == phase) & bool(regular)


def is_brief(steps: int) -> bool:
    """Whether so many steps have no two segments: a change is then found in blocks of two."""
    return steps < 2 * LEAST_SEGMENT


def regression(series: Floats, least: float = LEAST_RISE) -> StepChange | None:
    """The most significant lasting rise of the step time, if noise does not explain it."""
    level = stats.median(series)
    if level <= 0:
        return None
    limits = {CLIP * level, max(CLIP * level, float(np.nanquantile(series, MANY)))}
    each = [_clipped(series, least, limit) for limit in sorted(limits)]
    found = [change for change in each if change is not None]
    large = [change for change in found if change.ratio >= CLIP]  # located best if clipped higher
    return next(iter([*large[-1:], *found[:1]]), None)


def _clipped(series: Floats, least: float, limit: float) -> StepChange | None:
    """The same of a series in which nothing is above the limit."""
    found = None if is_brief(series.size) else _significant(series, least, limit, brief=False)
    if found is None and series.size < FEW_SEGMENTS * LEAST_SEGMENT:
        found = _significant(series, least, limit, brief=True)
    return found or sudden(series, limit=limit)


def sudden(
    series: Floats, either: int = LEAST_EITHER, limit: float | None = None
) -> StepChange | None:
    """A rise so large against the scatter of single steps that a few on either side show it.

    Args:
        either: steps that are needed before it, and after it.
        limit: what longer steps count as, in ns; 1.3 medians if not given.
    """
    level = stats.median(series)
    if level <= 0 or series.size < LEAST_SUDDEN:
        return None
    logs = np.log(np.clip(series, level / 100, limit or CLIP * level))
    split = stats.split_point(logs, 1, series.size - 1)
    if not either <= split <= series.size - either:
        return None
    before, after = logs[:split], logs[split:]
    rise, scatter = _rise(before, after)
    known = int(stats.MAD_EFFICIENCY * series.size)
    needed = max(SUDDEN, stats.threshold(BRIEF_ALARMS, series.size, known))
    if rise < max(math.log(LEAST_RISE), needed * scatter):
        return None
    slowest = np.nanquantile(before, 1 - TAIL, method="higher")
    if slowest >= np.nanquantile(after, TAIL, method="lower"):
        return None
    before_ns, after_ns = stats.median(series[:split]), stats.median(series[split:])
    return StepChange(split, after_ns / before_ns, before_ns, after_ns, rise / scatter)


def between_jobs(series: Floats, split: int) -> StepChange | None:
    """A rise from a healthy job's steps to those of this job, which need not be searched for.

    Args:
        split: the first step of this job; 0: there is no other.
    """
    before, after = np.log(np.maximum(series[:split], 1.0)), np.log(np.maximum(series[split:], 1.0))
    if min(before.size, after.size) < LEAST_EITHER:
        return None
    rise, scatter = _rise(before, after)
    needed = SUDDEN if series.size < BRIEF_JOBS else BETWEEN_JOBS
    if rise < max(math.log(LEAST_RISE), needed * scatter):
        return None
    if (before[:, None] < after).mean() < LONGER:
        return None
    before_ns, after_ns = stats.median(series[:split]), stats.median(series[split:])
    return StepChange(split, after_ns / before_ns, before_ns, after_ns, rise / scatter)


def _rise(before: Floats, after: Floats) -> tuple[float, float]:
    """The rise of the median, and the standard deviation of single steps on either side."""
    middle, later = stats.median(before), stats.median(after)
    left = np.concatenate((before - middle, after - later))
    return later - middle, max(stats.sigma(left), stats.NOISE_FLOOR)


def _significant(series: Floats, least: float, limit: float, brief: bool) -> StepChange | None:
    """A rise of the means of blocks, by which noise with memory is known."""
    level = stats.median(series)
    size, false_alarms = (BRIEF_BLOCK, BRIEF_ALARMS) if brief else (BLOCK, FALSE_ALARMS)
    blocks = stats.block_means(np.log(np.clip(series, level / 100, limit))[None], size)
    shortest = min(SEGMENT, max(LEAST_SEGMENT, len(series) * SEGMENT_SHARE))
    shortest = math.ceil((BRIEF_SEGMENT if is_brief(series.size) else shortest) / size)
    count = blocks.shape[1]
    if count < 2 * shortest:
        return None
    split = stats.split_point(blocks[0], shortest, count - shortest)
    z = _significance(blocks[0], split)
    if z < stats.threshold(false_alarms, count, count):
        return None
    column = _refine(series, limit, len(series) - (count - split) * size, size)
    before, after = stats.median(series[:column]), stats.median(series[column:])
    if before <= 0 or after < least * before:
        return None
    return StepChange(column, after / before, before, after, z)


def episode(series: Floats) -> tuple[StepChange, int] | None:
    """The longest costly range of longer steps that ended again, and the column after its last."""
    fast = float(np.nanquantile(series, FAST)) if np.isfinite(series).any() else 0.0
    count = len(series) // BLOCK
    if fast <= 0 or count < LEAST_BLOCKS:
        return None
    lead, allowed = len(series) - count * BLOCK, math.log(LEAST_RISE) / 2
    blocks = stats.block_means(np.log(np.maximum(series, fast / 100) / fast)[None], BLOCK)
    blocks = blocks - np.nanmedian(blocks[blocks <= np.nanmedian(blocks)])
    worst = stats.worst_stretch(blocks, allowed)
    first, stop = int(worst.first[0]), int(worst.stop[0])
    inside = blocks[0, first:stop]
    usual_around = first >= 2 and count - stop >= 2
    if stop - first < 2 or not usual_around or float(np.mean(inside > allowed)) < REGULAR:
        return None
    noise = stats.pooled_noise(blocks, allowed, worst).of_mean(worst.length)
    z = float(worst.mean[0]) / float(noise[0])
    if z < stats.threshold(FALSE_ALARMS, count * count, count):
        return None
    begin, end = lead + first * BLOCK, lead + stop * BLOCK
    before, after = (
        stats.median(np.delete(series, np.s_[begin:end])),
        stats.median(series[begin:end]),
    )
    if before <= 0 or after < LEAST_RISE * before:
        return None
    return StepChange(begin, after / before, before, after, z), end


def _significance(blocks: Floats, split: int) -> float:
    """Rise over its standard error."""
    left, right = blocks[:split], blocks[split:]
    before, after = float(np.nanmean(left)), float(np.nanmean(right))
    residual = np.concatenate((left - before, right - after))
    error = stats.noise_of(residual[None]).of_mean(np.array([left.size * right.size / blocks.size]))
    return (after - before) / float(error[0])


def _refine(series: Floats, limit: float, near: int, block: int) -> int:
    """The exact step of the change, within one block of where the blocks put it."""
    low, high = max(near - block, 1), min(near + block, len(series) - 1)
    begin, stop = max(low - 2 * block, 0), min(high + 2 * block, len(series))
    window = np.minimum(series[begin:stop], limit)
    return begin + stats.split_point(window, low - begin, high - begin)
