"""Confidence intervals: how far a score could be off by chance, at 95 %."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z = 1.959964
"""The normal quantile of a two-sided 95 % interval."""
RESAMPLES = 2000
"""Enough that bootstrap percentiles are accurate to about one in a hundred."""


@dataclass(frozen=True)
class Rate:
    """A number of hits out of a number of trials."""

    hits: int
    of: int

    @property
    def value(self) -> float | None:
        return self.hits / self.of if self.of else None

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's score interval, which holds for few jobs and for rates of 0 and 1.

        E. B. Wilson, "Probable inference, the law of succession, and statistical inference", 1927.
        """
        if not self.of:
            return 0.0, 1.0
        share, n = self.hits / self.of, self.of
        middle = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
        half = Z * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n)) / (1 + Z * Z / n)
        return max(middle - half, 0.0), min(middle + half, 1.0)

    def __add__(self, other: Rate) -> Rate:
        return Rate(self.hits + other.hits, self.of + other.of)


def rate(values: Sequence[bool | None]) -> Rate:
    """The rate of True among the values that are not None."""
    known = [one for one in values if one is not None]
    return Rate(sum(known), len(known))


@dataclass(frozen=True)
class Median:
    """The median of some numbers, with its bootstrap interval."""

    value: float
    low: float
    high: float
    of: int


def median(values: Sequence[float]) -> Median | None:
    """None if there are no values. The resampling seed is fixed: the interval is reproducible."""
    if not values:
        return None
    given = np.asarray(values, np.float64)
    drawn = np.random.default_rng(0).choice(given, (RESAMPLES, len(given)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return Median(float(np.median(given)), float(low), float(high), len(given))


@dataclass(frozen=True)
class Confusion:
    """True positives, false negatives and false positives."""

    hits: int = 0
    misses: int = 0
    false: int = 0

    @property
    def f1(self) -> float | None:
        """The harmonic mean of precision and recall."""
        both = 2 * self.hits + self.false + self.misses
        return 2 * self.hits / both if both else None
