"""How much longer steps lasted in which a rank had a spike than the steps around them.

Cost: a sort of the other steps for each spike. Cannot see: spikes in nearly all steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.diagnose.observed import Observed, once
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import FAST, HALF
from stepscope.window import Floats, Ints, Mask

ABOUT = 10
"""Steps around a spike whose median shows how long the step would have been. Our simulator."""


def spike_rise(job: Observed, one: Suspect, culprits: Sequence[Suspect]) -> Floats:
    """How much longer each step with a spike of the rank lasted than the steps around it in which
    nobody was slow (`free_columns`).

    What delays a rank at the end of a step makes the others wait in the next one, so that counts,
    too, unless it has a spike of its own. Where all steps of one kind have spikes, the others are
    shorter anyway; there it is no more than what the rank takes longer.
    """
    spikes = np.array(one.spikes)
    whole = np.full(spikes.size, one.whole_ns / spikes.size)
    period = job.line.job_period_ns
    after = np.minimum(spikes + 1, period.size - 1)
    beside = ~np.isin(after, spikes)
    other = free_columns(job, one, culprits)
    other = other[~np.isin(other, after) & np.isfinite(period[other])]
    if not other.size:
        return whole
    usual = np.array([_usual_around(period, other, at, job.line.warm_up) for at in spikes])
    later = np.where(beside, np.nan_to_num(period[after] - usual), 0.0)
    longer = np.asarray(np.nan_to_num(period[spikes] - usual) + later)
    return np.minimum(longer, whole) if _in_kinds(job, spikes) else longer


def free_columns(job: Observed, one: Suspect, culprits: Sequence[Suspect]) -> Ints:
    """The judged columns without spikes of the rank that show how long steps are without them.

    Columns in which another culprit is slow are left out, unless that one is slow in most of these
    spikes as well.
    """
    columns = np.arange(len(job.line.steps))
    spikes, free = np.array(one.spikes), columns >= job.line.warm_up
    for each in culprits:
        other = _is_slow(job, each)
        free &= ~other | bool(other[spikes].mean() > HALF)
    return columns[free & ~np.isin(columns, spikes)]


def _is_slow(job: Observed, one: Suspect) -> Mask:
    """The columns in which a culprit is slow: of those from the first to the last, which may have
    been found by their means, the ones with half of its excess or more."""
    columns = np.arange(len(job.line.steps))
    inside = np.isin(columns, columns[one.columns])
    if one.spikes or not one.phases:
        return inside
    return np.asarray(inside & (_excess(job, one) >= HALF * one.excess_ns))


@once
def _excess(job: Observed, one: Suspect) -> Floats:
    """What a culprit takes longer than its peers in each step, in its slow phases."""
    whole: Floats = np.sum(
        [np.nan_to_num(job.excess_of(phase, one.row)) for phase in one.phases], axis=0
    )
    return whole


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
    kinds = job.cycle.kinds if job.cycle.length > 1 else []
    return any(np.isin(kind, spikes).mean() > HALF for kind in kinds if kind.size)
