"""Robust statistics for the detectors: medians, noise, windows of steps, worst stretches.

Unknown values are NaN everywhere and are ignored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.diagnose.numeric import compiled
from stepscope.diagnose.thresholds import FAST
from stepscope.window import Floats, Ints, Mask

MAD_TO_SIGMA = 1.4826
"""Ratio of standard deviation to median absolute deviation, for a Gaussian. Statistics."""
MAD_EFFICIENCY = 0.37
"""A MAD of n values is as exact as a standard deviation of this part of n values. Statistics."""
NOISE_FLOOR = 0.002
"""Relative noise below this is the resolution of the clock (algorithm notes, section 4: MAD with
0.2 % floor). Prevents a scale of zero. Our simulator."""
TRIM = 0.2
"""Share of a block's values that is dropped at either end, so that a checkpoint every fifth step,
or rarer, does not affect a block of ten. Our simulator."""
MUCH_FREEDOM = 1000
"""Degrees of freedom are capped here: Student's quantile is then 0.7 % above its limit at z = 5.
Statistics."""
MAX_CORRELATION = 0.8
"""If neighbouring blocks correlate more than this, it is a trend and not noise. Our simulator."""
WINDOW = 10
"""Steps per window (algorithm notes, section 4: means of ten windows, 0 false ranks). Our
simulator."""
MOST_WINDOWS = 64
"""Longer series get wider windows, which bounds the work and the number of tests. Our simulator."""
LEAST_WINDOWS = 3
"""A stretch of fewer windows is transient. Our simulator."""


def median(values: Floats) -> float:
    """Median of the known values, 0 when there is none."""
    finite = np.isfinite(values)
    known = values.flatten() if finite.all() else values[finite]
    if not known.size:
        return 0.0
    # as numpy's median, which takes five times as long for a few dozen values; of many, placing
    # both middle ones takes three times as long as one and the largest before it
    high = known.size // 2
    known.partition(high)
    low = known[high] if known.size % 2 else known[:high].max()
    return float(low + known[high]) / 2


def varies(values: NDArray[np.signedinteger[Any]], begins: Ints) -> Mask:
    """Whether the values of each section, from one begin to the next, differ."""
    return np.asarray(np.maximum.reduceat(values, begins) != np.minimum.reduceat(values, begins))


def column_median(values: Floats) -> Floats:
    """Median of the known values of every column; NaN if there is none."""
    return _middle(np.sort(values, axis=0), np.isfinite(values).sum(axis=0))


def _middle(ordered: Floats, count: Ints) -> Floats:
    """The middle of columns sorted along axis 0 with their `count` known values first."""
    if not len(ordered):
        return np.full(ordered.shape[1:], np.nan)
    low = np.take_along_axis(ordered, np.maximum((count - 1) // 2, 0)[None], axis=0)[0]
    high = np.take_along_axis(ordered, np.minimum(count // 2, len(ordered) - 1)[None], axis=0)[0]
    return np.where(count > 0, (low + high) / 2, np.nan)


def row_medians(values: Floats) -> Floats:
    """Median of the known values of every row."""
    return column_median(values.T)


def row_means(values: Floats) -> Floats:
    """Mean of the known values of every row; NaN if there is none."""
    known = np.isfinite(values)
    count = known.sum(axis=1)
    total = np.where(known, values, 0.0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def fast_level(values: Floats) -> Floats:
    """What every row takes when it is fast: half of the steps may be slow, so it is not the median;
    NaN unknown."""
    known: Mask = np.asarray(np.isfinite(values).any(axis=-1))
    fast = np.nanquantile(np.where(known[..., None], values, 0.0), FAST, axis=-1)
    return np.where(known, fast, np.nan)


def medians_of(number: Ints, values: Floats | Ints, size: int) -> Floats:
    """Median of the values of each number below `size`; 0 where there are none."""
    order = np.lexsort((values, number))
    count = np.bincount(number, minlength=size)
    begins = (np.cumsum(count) - count)[count > 0]
    several = count[count > 0]
    low, high = values[order[begins + (several - 1) // 2]], values[order[begins + several // 2]]
    middle = np.zeros(size)
    middle[count > 0] = low + (high - low) / 2
    return middle


def sums(index: Ints, weights: Floats | Ints, size: int) -> Floats:
    """Sum of the weights per index, as floats."""
    return np.asarray(np.bincount(index, weights=weights, minlength=size).astype(np.float64))


def runs_of(columns: Ints) -> list[Ints]:
    """Sorted columns, cut where they are no neighbours."""
    cuts = np.flatnonzero(np.diff(columns) > 1) + 1
    return np.split(columns, cuts) if columns.size else []


def sigma(values: Floats) -> float:
    """Robust standard deviation of the known values (MAD, scaled), 0 when there is none."""
    return MAD_TO_SIGMA * median(np.abs(values - median(values)))


def leave_one_out_median(values: Floats) -> Floats:
    """For every value, the median of its peers: all others along the second last axis."""
    if compiled.peer_medians is None or not values.size:
        return sorted_peer_median(values)
    packed = values.astype(np.float64, copy=False).tobytes()
    medians = compiled.peer_medians(packed, *values.shape[-2:])
    return np.frombuffer(medians).reshape(values.shape)


def sorted_peer_median(values: Floats) -> Floats:
    """The same in numpy.

    One sort is enough for all members of a group: without the value at sorted position `i`, the
    k-th of the rest is at `k`, or at `k + 1` from `i` on.
    """
    size = values.shape[-2]
    order = np.argsort(values, axis=-2)  # NaN sorts last
    ordered = np.take_along_axis(values, order, axis=-2)
    position = np.argsort(order, axis=-2)
    others = np.isfinite(values).sum(axis=-2, keepdims=True) - 1
    low = np.maximum((others - 1) // 2, 0) + np.zeros_like(position)
    high = np.maximum(others // 2, 0) + np.zeros_like(position)
    low, high = low + (low >= position), high + (high >= position)
    last = size - 1
    peers = np.take_along_axis(ordered, np.minimum(low, last), axis=-2)
    peers = (peers + np.take_along_axis(ordered, np.minimum(high, last), axis=-2)) / 2
    return np.where(np.isfinite(values) & (others > 0), peers, np.nan)


def trimmed_mean(values: Floats, trim: float = TRIM) -> float:
    """Mean of the known values without this part of them at either end; there must be one."""
    known = np.sort(values[np.isfinite(values)])
    cut = int(known.size * trim)
    return float(known[cut : known.size - cut].mean())


def block_means(values: Floats, width: int) -> Floats:
    """Trimmed mean of every `width` steps along the last axis; leftover first steps are dropped."""
    count = values.shape[-1] // width
    tail = values[..., values.shape[-1] - count * width :]
    blocks = np.sort(tail.reshape(*values.shape[:-1], count, width), axis=-1)
    known = np.isfinite(blocks).sum(axis=-1, keepdims=True)
    cut = (known * TRIM).astype(np.int64)
    position = np.arange(width)
    kept = (position >= cut) & (position < known - cut)
    total = np.where(kept, blocks, 0.0).sum(axis=-1)
    number = kept.sum(axis=-1)
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


@dataclass(frozen=True)
class Stretches:
    """For every row of a matrix, the range of columns with the largest total excess."""

    first: Ints
    stop: Ints
    mean: Floats
    length: Ints
    """Number of columns of the range with a known value."""

    def inside(self, columns: int) -> Mask:
        """Which cells lie in the row's range."""
        at = np.arange(columns)
        return (at >= self.first[:, None]) & (at < self.stop[:, None])


def worst_stretch(excess: Floats, allowance: float) -> Stretches:
    """The range of columns with the largest sum of excess over an allowance, for every row.

    Page's cumulative sum (Continuous inspection schemes, 1954) with both ends kept; linear. The
    best allowance for a shift is half of the shift. So a second pass uses half of what the first
    found; otherwise a large shift would include columns before it that exceed the allowance by
    chance.
    """
    rough = _largest_sum(excess, np.full(len(excess), allowance))
    return _largest_sum(excess, np.maximum(rough.mean / 2, allowance))


def _largest_sum(excess: Floats, allowance: Floats) -> Stretches:
    """The range with the largest sum: the cumulative sum at its end less the smallest one before
    it."""
    rows, columns = excess.shape
    gain = np.where(np.isfinite(excess), excess - allowance[:, None], 0.0)
    total = np.concatenate((np.zeros((rows, 1)), np.cumsum(gain, axis=1)), axis=1)
    least = np.minimum.accumulate(total[:, :-1], axis=1)
    last_least = np.where(total[:, :-1] == least, np.arange(columns), 0)
    begin = np.maximum.accumulate(last_least, axis=1)
    last = np.argmax(total[:, 1:] - least, axis=1) if columns else np.zeros(rows, np.int64)
    first = np.take_along_axis(begin, last[:, None], axis=1)[:, 0] if columns else last
    return _with_means(excess, first, np.minimum(last + 1, columns))


def _with_means(excess: Floats, first: Ints, stop: Ints) -> Stretches:
    known = np.isfinite(excess)
    at = np.arange(excess.shape[1])
    chosen = (at >= first[:, None]) & (at < stop[:, None]) & known
    length = chosen.sum(axis=1)
    total = np.where(chosen, excess, 0.0).sum(axis=1)
    return Stretches(first, stop, total / np.maximum(length, 1), length)


def steadiest(excess: Floats, worst: Stretches, allowance: float, rows: Ints) -> Stretches:
    """The same, but of the given rows, whose excess comes and goes, the heaviest run of columns
    that exceed half of what those above the allowance do on average."""
    first, stop = worst.first.copy(), worst.stop.copy()
    for row in rows.tolist():
        values = excess[row, first[row] : stop[row]]
        level = float(values[values > allowance].mean())
        runs = runs_of(first[row] + np.flatnonzero(values > level / 2))
        heaviest = max(runs, key=lambda run: float(excess[row, run].sum()))
        first[row], stop[row] = heaviest[0], heaviest[-1] + 1
    return _with_means(excess, first, stop)


@dataclass(frozen=True)
class Noise:
    """How much block values scatter, and by how much autocorrelation increases a mean's error."""

    sigma: float
    memory: float
    samples: int

    def of_mean(self, length: Ints) -> Floats:
        """Standard error of the mean of `length` blocks."""
        return self.sigma * self.memory / np.sqrt(np.maximum(length, 1))


def pooled_noise(excess: Floats, allowance: float, up: Stretches) -> Noise:
    """Scatter of all rows around two levels each: inside and outside of their worst stretch.

    A row may differ upwards or downwards: in a pair, the excess of one is the deficit of the other.

    Args:
        up: the worst stretches with the same allowance.
    """
    down = worst_stretch(-excess, allowance)
    higher = up.mean * np.sqrt(up.length) >= down.mean * np.sqrt(down.length)
    columns = excess.shape[1]
    inside = np.where(higher[:, None], up.inside(columns), down.inside(columns))
    level = np.where(inside, np.where(higher, up.mean, -down.mean)[:, None],
                     _mean_outside(excess, inside))  # fmt: skip
    return noise_of(excess - level)


def is_no_chance(excess: Floats, allowance: float, up: Stretches, false_alarms: float) -> Mask:
    """For every row, whether rows that only scatter do not exceed for as long what it does in its
    worst stretch.

    Args:
        up: the worst stretches with the same allowance.
        false_alarms: the share of all diagnoses in which this is wrong for some row.
    """
    noise = pooled_noise(excess, allowance, up)
    needed = threshold(false_alarms, excess.size, noise.samples)
    return np.asarray(up.mean >= needed * noise.of_mean(up.length))


def noise_of(residual: Floats) -> Noise:
    """Scatter of residuals, after the levels are subtracted.

    The larger of two estimates counts: around the levels (includes slow drifts) and between
    neighbours (includes what the levels absorbed). Correlation of neighbours increases the error of
    a mean by sqrt((1 + rho) / (1 - rho)), the large-sample factor of a first-order autoregression;
    short series underestimate rho by (1 + 3 rho) / n (Kendall, Note on bias in the estimation of
    autocorrelation, 1954).
    """
    spread = max(sigma(residual), step_noise(residual), NOISE_FLOOR)
    rho = correlation(residual)
    rho = min(rho + (1 + 3 * rho) / max(residual.shape[1], 1), MAX_CORRELATION)
    samples = int(np.isfinite(residual).sum())
    return Noise(spread, math.sqrt((1 + rho) / (1 - rho)), samples)


def step_noise(values: Floats) -> float:
    """Scatter of single values from the differences of neighbours, independent of their level."""
    return sigma(np.diff(values, axis=1)) / math.sqrt(2)


def _mean_outside(excess: Floats, inside: Mask) -> Floats:
    outside = ~inside & np.isfinite(excess)
    total = np.where(outside, excess, 0.0).sum(axis=1, keepdims=True)
    return np.asarray(total / np.maximum(outside.sum(axis=1, keepdims=True), 1))


def correlation(residual: Floats) -> float:
    """Correlation of neighbouring columns, pooled over the rows, between 0 and MAX_CORRELATION."""
    scale = 3 * sigma(residual)
    clipped = np.clip(residual, -scale, scale)
    left, right = clipped[:, :-1], clipped[:, 1:]
    both = np.isfinite(left) & np.isfinite(right)
    product = float(np.where(both, left * right, 0.0).sum())
    power = float(np.where(both, (left**2 + right**2) / 2, 0.0).sum())
    return min(max(product / power, 0.0), MAX_CORRELATION) if power > 0 else 0.0


def largest_mean(values: Floats, length: int) -> float:
    """The largest mean, of either sign, over any `length` neighbouring columns of any row."""
    if not 0 < length <= values.shape[-1] or not values.size:
        return 0.0
    total = np.cumsum(np.nan_to_num(values), axis=-1)
    total[..., length:] = total[..., length:] - total[..., :-length]
    return float(np.abs(total[..., length - 1 :]).max()) / length


def threshold(false_alarms: float, tests: int, samples: int) -> float:
    """The limit that healthy noise exceeds in a share `false_alarms` of all diagnoses.

    Bonferroni over the tests. The scale is estimated from `samples` values, so the quantile is
    Student's, by its expansion t = z + (z^3 + z) / 4n (Abramowitz and Stegun, 26.7.5).
    """
    z = NormalDist().inv_cdf(1 - false_alarms / max(tests, 1))
    return z + (z**3 + z) / (4 * max(samples - 2, 1))


@lru_cache(maxsize=1024)
def student(probability: float, freedom: int) -> float:
    """Student's quantile by bisection, which is exact for few degrees of freedom as well."""
    low, high = 0.0, 1e6
    freedom = min(freedom, MUCH_FREEDOM)
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_cdf(middle, freedom) < probability else (low, middle)
    return high


def _student_cdf(t: float, freedom: int) -> float:
    """For t >= 0, by the finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    term, total = (1.0, 0.0) if freedom % 2 == 0 else (cosine, 0.0)
    for k in range(freedom % 2, freedom - 1, 2):
        total += term
        term *= cosine * cosine * (k + 1) / (k + 2)
    inside = sine * total if freedom % 2 == 0 else (angle + sine * total) * 2 / math.pi
    return 0.5 + inside / 2


def split_point(values: Floats, low: int, high: int) -> int:
    """The column in [low, high] that best splits the series into two levels by least squares."""
    known = np.isfinite(values)
    filled = np.where(known, values, 0.0)
    count = np.concatenate(([0], np.cumsum(known)))
    total = np.concatenate(([0.0], np.cumsum(filled)))
    at = np.arange(low, high + 1)
    left, right = count[at], count[-1] - count[at]
    gain = total[at] ** 2 / np.maximum(left, 1)
    gain += (total[-1] - total[at]) ** 2 / np.maximum(right, 1)
    return int(at[int(np.argmax(gain))]) if at.size else low


def window_width(steps: int) -> int:
    """Steps per window: ten, more in long series and fewer in very short ones."""
    if steps < LEAST_WINDOWS * 2 * WINDOW:
        return max(2, steps // (LEAST_WINDOWS * 2))
    return max(WINDOW, -(-steps // MOST_WINDOWS))
