"""How sure a loss is: the odds that it is real, and the odds that it is worth a verdict.

Two numbers are multiplied, so that no loss makes up for missing evidence. Bits of evidence are
log-likelihood ratios less the bits that it takes to name the hypothesis among its alternatives.
"""

from __future__ import annotations

import math

from stepscope.diagnose.finding import Decision
from stepscope.diagnose.thresholds import LEAST_SCORE

WORTH = 0.015
"""The loss with even odds to be worth a verdict: verdicts start at two percent. Our simulator."""
ORDINARY, TWICE = 0.05, 1.0
"""What jobs lose to imbalance and to hiccups of everyone: log-normal, five percent within a factor
of two. Measured on real data (`shared/real`)."""
LOADING = 0.03
"""What they lose to loading that all ranks do at once, likewise: 0.2 to 1 % in 16 real jobs, up to
3.7 % in the lab's 12 healthy ones. Measured on real data."""
MOST_BITS = 60.0
"""More evidence than this changes nothing."""


def odds(bits: float, loss: float) -> float:
    """How sure a verdict is, between 0 and 1.

    Half of the bits count: steps resemble their neighbours, so their evidence is not independent.
    """
    real = 1 / (1 + 2 ** (-min(max(bits, -MOST_BITS), MOST_BITS) / 2))
    return real / (1 + (WORTH / max(loss, 1e-9)) ** 2)


def likely(sure: float, bits: float) -> Decision:
    """Whether a loss is sure enough for a verdict."""
    says = f"{bits:.1f} bits of evidence"
    return Decision("likely", sure >= LEAST_SCORE, sure, LEAST_SCORE, says)


def unusual_bits(loss: float, ordinary: float = ORDINARY) -> float:
    """Evidence that a loss of a kind that every job has some of is more than the usual."""
    doublings = math.log2(max(loss / ordinary, 1.0)) / TWICE
    return doublings**2 / 2 / math.log(2) - 2
