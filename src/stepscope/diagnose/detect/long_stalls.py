"""Ranks whose few pauses are far longer than any other rank's: judged by length, because the count
says little.

Every process on a busy machine pauses at times, seldom and for long. How long is estimated from the
job itself: no rank may be blamed for a pause as long as any of the others', nor for one below the
longest that healthy jobs showed. Lengths are taken to have the heavy tail of such pauses.
Source: order statistics of Pareto's law.
Cannot see: two ranks that both have long pauses; pauses shorter than `HICCUP_NS`.
"""

from __future__ import annotations

import numpy as np

from stepscope.window import Floats, Ints

HICCUP_NS = 4 * 10**8
"""The longest pause of healthy processes on a busy machine. Measured in our lab."""
TAIL = 2.0
"""Exponent of Pareto's law: of pauses twice as long there are a quarter as many. Its variance is
the largest that a sample can still estimate. Statistics."""
SEVERAL = 2
"""One long pause may be anything. Statistics."""


def chance(own_ns: Floats, others_ns: Floats, ranks: int) -> float:
    """The probability that by chance one rank, and no other, has pauses of such lengths.

    All that are longer than any other rank's hit one and the same rank, and each of them is that
    much longer.
    """
    longest = own_ns[longer(own_ns, others_ns)]
    if longest.size < SEVERAL:
        return 1.0
    tails = float(np.prod((_usual_ns(others_ns) / longest) ** TAIL))
    return tails * float(ranks) ** (1 - longest.size)


def longer(own_ns: Floats, others_ns: Floats) -> Ints:
    """Which pauses of a rank are longer than any of the others' and than healthy ones."""
    return np.flatnonzero(own_ns > _usual_ns(others_ns))


def _usual_ns(others_ns: Floats) -> float:
    return max(float(others_ns.max(initial=0.0)), HICCUP_NS)
