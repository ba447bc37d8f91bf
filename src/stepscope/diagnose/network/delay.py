"""What slow transfers cost a step, by how much longer the slow steps are (blame rule 4)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stepscope.diagnose.network.edges import Place
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.views.unnamed import UNNAMED
from stepscope.window import Floats, Mask

EXPLAINS = 0.5
"""Transfers that carry half of a rise explain it: operators that nobody recorded, or that are never
compared, go the same way, and what is late in a pipeline is late in every stage."""
LEAST_CALM = 5
"""So many steps without anything slow tell how long steps are then."""


def lost_per_step(
    longest_ns: float, period: Floats, active: Mask, calm: Mask, shared: bool, everywhere: bool
) -> float:
    """What would come back per slow step: what it is longer than calm ones.

    Args:
        longest_ns: what the transfers of one rank took longer.
        active: the slow steps.
        shared: somebody else has a part in these steps: then it is no more than `longest_ns`.
        everywhere: data was slow between all hosts, and delays add up over more than one rank.
    """
    if calm.sum() < LEAST_CALM:
        return longest_ns
    rise = max(_rise(period, active, calm), 0.0)
    explained = everywhere or longest_ns >= EXPLAINS * rise
    return rise if explained and not shared else min(longest_ns, rise)


def _rise(period: Floats, active: Mask, calm: Mask) -> float:
    """By how much slow steps are longer than calm ones. What is late at the end of a step makes the
    next one longer, or is made good in it: that belongs to the slow steps before."""
    usual = stats.median(period[calm])
    after = np.flatnonzero(active[:-1] & ~active[1:]) + 1
    more = stats.median(period[after]) - usual if after.size else 0.0
    return stats.median(period[active]) - usual + more * after.size / int(active.sum())


def longest_delay(places: Sequence[Place], excess_ns: Floats) -> float:
    """The most that transfers of any one rank took longer, per step.

    Args:
        excess_ns: `[place, step]`.
    """
    per_rank: dict[int, float] = {}
    for place, lost in zip(places, excess_ns.mean(axis=1).tolist(), strict=True):
        for rank in place.members:
            per_rank[rank] = per_rank.get(rank, 0.0) + lost
    return max(per_rank.values(), default=0.0)


def idle_ns(job: Observed, members: Sequence[int], steps: Mask) -> float:
    """The part of a step in which the busiest of the members does nothing of its own: no transfer
    that they wait for can cost more. Infinite where no phases tell.
    """
    rows = job.line.rows(np.array(members, np.int64))
    known = [own for phase, own in zip(job.own.phases, job.own.own, strict=True)
             if phase not in UNNAMED]  # fmt: skip
    if not known or (rows < 0).any():
        return math.inf
    busy = np.nansum([own[np.ix_(rows, steps)] for own in known], axis=0)
    period = job.line.job_period_ns[steps]
    return max(min(stats.median(period - one) for one in busy), 0.0)
