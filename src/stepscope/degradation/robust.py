"""Whether a job has become slower than it was, in a way that healthy jobs do not.

The idea is EROICA's (section 4.1, see `published`): the mean of recent steps against the shortest
mean before. Where we differ:

- The time of a step is the time from the end of one to the end of the next, so that work between
  steps counts.
- Steps are judged in units of at least `UNIT_SECONDS`. What is slow for a shorter time than ten
  units is over before ranks could be profiled.
- A step counts for at most `CLIP` times what is usual: one checkpoint, evaluation or start of an
  epoch is one long step. Stalls in every fourth step still count.
- Usual is the lower quartile of earlier means, which a few lucky ones do not lower.
- Beyond the paper's 5 %, the newest mean must lie above nine tenths of all earlier means by
  `LIMIT` times their noise: a job whose step times swing does not trigger at each swing.
- A jump beyond what a step counts for, and beyond nine tenths of all earlier units, is found where
  little is known of the noise.

Lossy: a rise after less than `LEAST_UNITS` units, below 5 %, or within the noise is not seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.window import Floats

UNIT_SECONDS = 0.5
"""Our choice: ten units take as long as it takes until all hosts have an order and its ranks
begin."""
WARM_UP_STEPS = 20
"""Not judged: the ten that show what a step is, and as many while caches fill. Our choice."""
TEN = 10
"""Units per mean; longer windows consist of these."""
WINDOWS = ((10, 1.10), (50, 1.05), (200, 1.05))
"""Units of a window of newest steps, and by how much its mean must have risen. 5 % over 50 are the
paper's; the short window finds large rises sooner, the long one small rises in noise."""
PERSISTENT = 8
"""Of the ten units of the shortest window: three in a row are what a new epoch costs. Our
choice."""
LEAST_UNITS = 20
"""Before the newest window, at least. Our choice."""
MOST_UNITS = 2_000
"""Remembered, besides the longest window; older ones no longer say what is usual. Our choice."""
CLIP = 1.3
"""As `diagnose.detect.steps.step_time.CLIP`; our simulator."""
USUAL, OFTEN = 0.25, 0.9
"""Quantiles of earlier means: what is usual, and what was often seen. Our choice."""
LIMIT = 6.0
"""Standard errors; statistics: see docs/methods/eroica-detect.md for the rate of false alarms."""
LEAST_NOISE = 0.002
"""As `diagnose.numeric.stats.NOISE_FLOOR`; our simulator."""
WIDTHS, LAGS = (1, 5, 20), (1, 4)
"""Means that are averaged, and how far apart they are compared, to learn their noise; statistics:
noise that is correlated over ten units shows only further apart."""
_KEPT = MOST_UNITS + max(units for units, _ in WINDOWS)
_MAD = 1.4826
"""Standard deviations in a median absolute deviation; statistics."""


@dataclass(frozen=True)
class Rise:
    """The newest units take this many times as long as usual."""

    ratio: float
    units: int
    """In how many units it shows."""


def rise(units: Floats) -> Rise | None:
    """Whether the newest of these units, oldest first, are slower than those before.

    Units are mean step times, each of equally many steps.
    """
    whole = units[units.size % TEN :]
    if whole.size < TEN + LEAST_UNITS:
        return None
    level = float(np.quantile(whole[:-TEN], USUAL))
    if level <= 0:
        return None
    if jumped := _jumped(whole / level):
        return jumped
    tens = np.minimum(whole / level, CLIP).reshape(-1, TEN)
    means = tens.mean(axis=1)
    lasts = (tens[-1] > WINDOWS[0][1]).sum() >= PERSISTENT
    windows = [one for one in WINDOWS if lasts or one[0] > TEN]
    single = _spread(tens.ravel(), 1) / np.sqrt(TEN)
    found = (_risen(means, single, units // TEN, least) for units, least in windows)
    return next((one for one in found if one is not None), None)


def _jumped(units: Floats) -> Rise | None:
    """Whether most of the newest ten units take longer than a unit counts for, and longer than nine
    tenths of all earlier ones did: then little need be known of their noise."""
    newest, earlier = units[-TEN:], units[:-TEN]
    least = max(CLIP, WINDOWS[0][1] * float(np.quantile(earlier, OFTEN)))
    if (newest > least).sum() < PERSISTENT:
        return None
    return Rise(float(np.median(newest) / np.median(earlier)), TEN)


def _risen(means: Floats, noise: float, width: int, least: float) -> Rise | None:
    """Compares the newest window of so many means with all earlier ones.

    `noise` is that of one mean if units are independent. Where little came before, neither what is
    usual nor the noise is well known.
    """
    before = means[:-width]
    earlier = before[before.size % width :].reshape(-1, width).mean(axis=1)
    if earlier.size < LEAST_UNITS / TEN:
        return None
    newest = float(means[-width:].mean())
    ratio = newest / float(np.quantile(earlier, USUAL))
    above = newest - float(np.quantile(earlier, OFTEN))
    known = max(_noise(before, width), noise / np.sqrt(width))
    unsure = np.sqrt(1 + width / before.size) * (1 + LEAST_UNITS / TEN / before.size)
    if ratio < least or above < LIMIT * known * unsure:
        return None
    return Rise(ratio, width * TEN)


def _noise(means: Floats, width: int) -> float:
    """Standard error of the mean of so many means, from how earlier means differ from those soon
    after them: slow changes do not count, correlated noise does."""
    found = [LEAST_NOISE]
    for together in WIDTHS:
        blocks = means[means.size % together :].reshape(-1, together).mean(axis=1)
        if together == 1 or (together <= width and blocks.size > TEN):
            found += [_spread(blocks, lag) * np.sqrt(together / width) for lag in LAGS]
    return max(found)


def _spread(values: Floats, lag: int) -> float:
    """Standard deviation, by the differences of values that lie so far apart."""
    apart = values[lag:] - values[:-lag]
    return float(_MAD * np.median(np.abs(apart)) / np.sqrt(2)) if apart.size else 0.0


class RobustRise:
    """Takes the times of steps in order, and judges them whenever a unit is complete."""

    def __init__(self) -> None:
        self._skip = WARM_UP_STEPS
        self._steps: list[float] = []
        self._per_unit = 0
        self._units = np.zeros(0)

    @property
    def usual(self) -> float:
        """The step time that is usual; 0 while unknown."""
        return float(np.quantile(self._units, USUAL)) if self._units.size else 0.0

    def restart(self) -> None:
        """Forgets what was usual: the newest is, from now on."""
        self._units = np.zeros(0)
        self._steps = []

    def add(self, period_s: float) -> Rise | None:
        """Whether the job is slower now than it was."""
        if self._skip > 0:
            self._skip -= 1
            return None
        self._steps.append(period_s)
        if not self._per_unit:
            self._choose()
        if not self._per_unit or len(self._steps) < self._per_unit:
            return None
        whole = len(self._steps) // self._per_unit * self._per_unit
        steps = np.array(self._steps[:whole]).reshape(-1, self._per_unit)
        self._steps = self._steps[whole:]
        self._units = np.concatenate((self._units, _means(steps)))[-_KEPT:]
        return rise(self._units)

    def _choose(self) -> None:
        """Decides how many steps make a unit, from the first ten."""
        if len(self._steps) >= TEN:
            usual = float(np.median(self._steps))
            self._per_unit = max(1, int(np.ceil(UNIT_SECONDS / usual))) if usual > 0 else 1


def _means(steps: Floats) -> Floats:
    """The mean step time of each unit, in which a long step counts for `CLIP` usual ones."""
    usual = np.median(steps, axis=1, keepdims=True)
    most = CLIP * usual if steps.shape[1] > 1 else steps
    means: Floats = np.minimum(steps, most).mean(axis=1)
    return means
