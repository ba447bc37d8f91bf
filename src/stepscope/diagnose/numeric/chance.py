"""How often something happens by chance: episodes of it, and the binomial tail."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stepscope.window import Ints, Mask


@dataclass(frozen=True)
class Runs:
    """Episodes in all rows."""

    length: Ints
    ended: Mask
    """Whether they were over before the last step."""

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
        """The longest that passed by itself."""
        return int(self.length[self.ended].max(initial=0))


def log_tail(often: int, trials: int, chance: float) -> float:
    """Logarithm of how likely something happens so often or more: the first term of the binomial
    tail, with a geometric bound on the rest."""
    if chance >= 1 or often <= trials * chance:
        return 0.0
    ways = math.lgamma(trials + 1) - math.lgamma(often + 1) - math.lgamma(trials - often + 1)
    first = ways + often * math.log(chance) + (trials - often) * math.log1p(-chance)
    shrinks = (trials - often) * chance / ((often + 1) * (1 - chance))
    return first - math.log1p(-shrinks) if shrinks < 1 else first + math.log(trials)
