"""The probability that events happen this often by chance: runs, binomial and Poisson tails."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stepscope.window import Ints, Mask


@dataclass(frozen=True)
class Runs:
    """Runs of consecutive slow steps, of all rows."""

    length: Ints
    ended: Mask
    """Whether each run ended before the last step."""

    @classmethod
    def of(cls, slow: Mask) -> Runs:
        apart = np.pad(slow, ((0, 0), (0, 1))).ravel()
        edges = np.flatnonzero(np.diff(apart.astype(np.int8), prepend=0))
        start, stop = edges[::2], edges[1::2]
        return cls(stop - start, stop % (slow.shape[1] + 1) < slow.shape[1])

    @property
    def longest(self) -> int:
        return int(self.length.max(initial=0))

    @property
    def passing(self) -> int:
        """The length of the longest run that ended."""
        return int(self.length[self.ended].max(initial=0))


def log_tail(often: int, trials: int, chance: float) -> float:
    """Logarithm of the probability of at least `often` events in `trials`: the first term of the
    binomial tail, with a geometric bound on the rest."""
    if chance >= 1 or often <= trials * chance:
        return 0.0
    choose = math.lgamma(trials + 1) - math.lgamma(often + 1) - math.lgamma(trials - often + 1)
    first = choose + often * math.log(chance) + (trials - often) * math.log1p(-chance)
    ratio = (trials - often) * chance / ((often + 1) * (1 - chance))
    return first - math.log1p(-ratio) if ratio < 1 else first + math.log(trials)


def poisson_tail(count: int, rate: float) -> float:
    """The probability of `count` events or more where `rate` are expected."""
    term = math.exp(-rate + count * math.log(rate) - math.lgamma(count + 1))
    total, more = 0.0, count
    while term > total * 1e-12:
        total += term
        more += 1
        term *= rate / more
    return min(total, 1.0)
