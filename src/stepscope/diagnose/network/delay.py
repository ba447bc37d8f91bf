"""The cost of slow transfers per step: how much longer the slow steps are (blame rule 4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.network.edges import Place
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.views.communication import loads
from stepscope.diagnose.views.unnamed import UNNAMED
from stepscope.window import Floats, Mask

EXPLAINS = 0.5
"""Transfers that account for half of a rise explain all of it: operators that are not recorded or
not compared use the same path, and a delay in a pipeline affects every stage. Our simulator."""
LEAST_CALM = 3
"""Steps without slow transfers that are needed to know the normal step time: of fewer, one that is
odd decides. Statistics."""


@dataclass(frozen=True)
class Delay:
    """By how much transfers delay a slow step, as far as only they are considered."""

    what_if_ns: float
    """By a replay of the steps, if there is one."""
    longest_ns: float
    """The largest delay of any rank's transfers."""


def lost_per_step(
    delay: Delay, period: Floats, active: Mask, calm: Mask, shared: bool, everywhere: bool
) -> float:
    """Time per slow step that would be saved: how much longer slow steps are than calm ones.

    Args:
        active: the slow steps.
        calm: steps without slow transfers.
        shared: these steps have other causes as well; then the cost is at most the what-if's.
        everywhere: data was slow between all hosts, and delays add up over more than one rank.
    """
    if calm.sum() < LEAST_CALM:
        return delay.what_if_ns
    rise = max(_rise(period, active, calm), 0.0)
    explained = everywhere or max(delay.what_if_ns, delay.longest_ns) >= EXPLAINS * rise
    return rise if explained and not shared else min(delay.what_if_ns, rise)


def _rise(period: Floats, active: Mask, calm: Mask) -> float:
    """How much longer slow steps are than calm ones.

    A delay at the end of a step changes the time of the next step. That change counts as cost of
    the slow step before it.
    """
    usual = stats.median(period[calm])
    after = np.flatnonzero(active[:-1] & ~active[1:]) + 1
    more = stats.median(period[after]) - usual if after.size else 0.0
    return stats.median(period[active]) - usual + more * after.size / int(active.sum())


def longest_delay(places: Sequence[Place], excess_ns: Floats) -> float:
    """The largest delay per step that the transfers of any single rank had.

    Args:
        excess_ns: `[place, step]`.
    """
    per_rank: dict[int, float] = {}
    for place, lost in zip(places, excess_ns.mean(axis=1).tolist(), strict=True):
        for rank in place.members:
            per_rank[rank] = per_rank.get(rank, 0.0) + lost
    return max(per_rank.values(), default=0.0)


def idle_ns(job: Observed, members: Sequence[int], steps: Mask) -> float:
    """The time per step in which the busiest member has no work of its own: the most that a
    transfer for which the members wait can cost. Infinite if no phases were recorded.

    Where phases of a rank add up to more than its steps last, its host loads data beside what its
    device does, and may wait for the device meanwhile: then loading does not keep it busy.
    """
    rows = job.line.rows(np.array(members, np.int64))
    known = {phase: own for phase, own in job.own.items() if phase not in UNNAMED}
    if not known or (rows < 0).any():
        return math.inf
    at = np.ix_(rows, steps)
    busy = np.nansum([own[at] for own in known.values()], axis=0)
    loading = sum((np.nan_to_num(own[at]) for phase, own in known.items() if loads(phase)),
                  np.zeros_like(busy))  # fmt: skip
    period = job.line.job_period_ns[steps]
    idle = np.where(busy > period, period - busy + loading, period - busy)
    return max(min(map(stats.median, idle)), 0.0)
