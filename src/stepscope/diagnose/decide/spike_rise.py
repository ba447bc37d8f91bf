"""How much longer steps lasted in which a rank had a spike than the steps around them.

Cost: a sort of the other steps for each spike. Cannot see: spikes in nearly all steps.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import FAST, HALF
from stepscope.window import Floats, Ints

ABOUT = 10
"""Steps around a spike whose median shows how long the step would have been. Our simulator."""


def spike_rise(job: Observed, one: Suspect) -> Floats:
    """How much longer each step with a spike of the rank lasted than the steps around it.

    What delays a rank at the end of a step makes the others wait in the next one, so that counts,
    too, unless it has a spike of its own.
    """
    spikes = np.array(one.spikes)
    if job.cycle.length > 1 and _in_kinds(job, spikes):
        return np.full(spikes.size, one.whole_ns / spikes.size)
    period = job.line.job_period_ns
    after = np.minimum(spikes + 1, period.size - 1)
    beside = ~np.isin(after, spikes)
    other = np.arange(job.line.warm_up, period.size)
    other = other[~np.isin(other, np.union1d(spikes, after)) & np.isfinite(period[other])]
    if not other.size:
        return np.full(spikes.size, one.whole_ns / spikes.size)
    usual = np.array([_usual_around(period, other, at, job.line.warm_up) for at in spikes])
    later = np.where(beside, np.nan_to_num(period[after] - usual), 0.0)
    return np.asarray(np.nan_to_num(period[spikes] - usual) + later)


def _usual_around(period: Floats, other: Ints, at: int, warm_up: int) -> float:
    """How long a step would have been: the median of those around it without spikes. Of few, half
    may be slow for reasons of their own, so there it is the fast level of all steps, or the median
    of those few if that is less: where most steps have a spike, the fast level has one, too."""
    if other.size < ABOUT:
        return float(min(np.nanquantile(period[warm_up:], FAST), np.median(period[other])))
    near = other[np.argsort(np.abs(other - at), kind="stable")[:ABOUT]]
    return float(np.median(period[near]))


def _in_kinds(job: Observed, spikes: Ints) -> bool:
    """Whether most steps of some kind have a spike, so that the others show nothing of that kind's
    usual length."""
    return any(np.isin(kind, spikes).mean() > HALF for kind in job.cycle.kinds if kind.size)
