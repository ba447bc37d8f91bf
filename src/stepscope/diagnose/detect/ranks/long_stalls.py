"""Ranks whose few pauses are far longer than any other rank's: judged by length, because the count
says little.

Every process on a busy machine pauses at times, seldom and for long. How long is estimated from the
job itself: no rank may be blamed for a pause as long as any of the others', nor for one below the
longest that healthy jobs showed. Lengths are taken to have the heavy tail of such pauses.
Source: order statistics of Pareto's law. A few other ranks may have long pauses of their own, as
where two are slow in turns. They can be left out; then the p-value is multiplied by the number of
ranks for each (Bonferroni's correction). Pauses that come back every n steps are the less likely to
be chance (`by_regularity`).
Cannot see: many ranks with long pauses; pauses shorter than `HICCUP_NS`.
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


def without_suspects(own_ns: Floats, others_ns: Floats, suspects: int) -> tuple[Floats, float]:
    """The longest pauses of the others, without the few that have long ones themselves: as many as
    make it least likely that this rank's pauses are chance; and how likely it is then.

    Args:
        others_ns: the longest pause of each.
        suspects: how many may be left out.
    """
    ordered, ranks = np.sort(others_ns), others_ns.size + 1
    # it only helps to leave out ranks with long pauses, and fewer than this rank has pauses
    suspects = min(suspects, int((ordered > HICCUP_NS).sum()), own_ns.size)
    ways = [(chance(own_ns, ordered[: ordered.size - out], ranks, out), out)
            for out in range(suspects + 1)]  # fmt: skip
    by_chance, out = min(ways)
    return ordered[: ordered.size - out], by_chance


def chance(own_ns: Floats, others_ns: Floats, ranks: int, left_out: int = 0) -> float:
    """The probability that by chance one rank, and no other, has pauses of such lengths.

    All that are longer than any other rank's hit one and the same rank, and each of them is that
    much longer. For each of the ranks that were left out it is multiplied by the number of ranks.
    """
    longest = own_ns[longer(own_ns, others_ns)]
    if longest.size < SEVERAL:
        return 1.0
    tails = float(np.prod((_usual_ns(others_ns) / longest) ** TAIL))
    return tails * float(ranks) ** (1 + left_out - longest.size)


def by_regularity(steps: Ints) -> float:
    """The probability that by chance pauses come back at distances as equal as those of these
    steps; the first two give the distance."""
    apart = np.diff(steps)
    if apart.size < 2:
        return 1.0
    usual = float(np.median(apart))
    unequal = 2 * float(np.abs(apart - usual).max()) + 1
    return float(min(unequal / usual, 1.0) ** (apart.size - 1))


def longer(own_ns: Floats, others_ns: Floats) -> Ints:
    """Which pauses of a rank are longer than any of the others' and than healthy ones."""
    return np.flatnonzero(own_ns > _usual_ns(others_ns))


def _usual_ns(others_ns: Floats) -> float:
    return max(float(others_ns.max(initial=0.0)), HICCUP_NS)
