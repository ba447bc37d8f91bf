"""What rose when the steps of a job became longer: before against after the change.

Paper: ARGUS (2026), L1, shows when; people read in L4 and L5 what rose at the same time.
What differs: medians per step of own time, of each phase, of processor time, of the longest pause,
and of transfers after the last arrival.
Cost: medians of arrays at hand. Cannot see: a job slow from the start.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.account.model import Model
from stepscope.diagnose.detect.ranks.gc_pauses import risen_pause_ns
from stepscope.diagnose.detect.steps.step_time import StepChange
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.stacks import STANDS_OUT
from stepscope.diagnose.views.unnamed import UNNAMED
from stepscope.trace import DATA_LOAD
from stepscope.window import Floats

DOMINANT = 0.6
"""A phase is named when it makes up this part of the rise. Our simulator."""
NOTABLE = 0.01
"""Shorter phases, as parts of a rank's own time, show nothing about the machine. Our choice."""
UNCHANGED = 0.25
"""A phase stays as it is if it grows by at most this part of the relative rise. As in `exposed`."""


@dataclass(frozen=True)
class Rise:
    """What rose, per step and in ns, from before the split to after it."""

    step_ns: float
    own_ns: float
    shared: float
    """Part of the ranks whose own time rose by half as much as the median rank's."""
    modelled_ns: float
    """By how much longer a step becomes by that: in pipelines, bubbles grow with the work."""
    own_ratio: float
    """Of own times, after to before."""
    selective: bool
    """Whether some phase takes no longer than before: a busy machine slows down all of them."""
    phase: str | None
    processor_ns: float | None
    pause_ns: float
    transfer_ns: float


def shared_rise(job: Observed, change: StepChange, culprits: Collection[int] = ()) -> Rise:
    """Measures everything that could have made all ranks slower; `culprits` are ranks with a
    verdict."""
    before, after = slice(job.line.warm_up, change.split), slice(change.split, None)
    own = risen(job.total, before, after)
    typical = stats.median(own)
    known = own[np.isfinite(own)]
    shared = float((known >= HALF * typical).mean()) if known.size and typical > 0 else 0.0
    usual = stats.median(job.total[:, before])
    ratio = 1 + typical / usual if usual > 0 else 1.0
    processor = None if job.processor is None else risen(job.processor, before, after)
    return Rise(
        change.after_ns - change.before_ns,
        typical,
        shared,
        max(typical, _modelled(job, before, after, culprits)),
        ratio,
        _is_selective(job, before, after, ratio),
        _phase(job, before, after, typical),
        None if processor is None else stats.median(processor),
        risen_pause_ns(job, before, after, culprits),
        _transfer(job, change.split),
    )


def risen(values: Floats, before: slice, after: slice) -> Floats:
    """Median after less median before, rank by rank."""
    return stats.column_median(values[:, after].T) - stats.column_median(values[:, before].T)


def _modelled(job: Observed, before: slice, after: slice, culprits: Collection[int] = ()) -> float:
    """The rise of a pipeline's step time, by what its stages do, culprits excluded."""
    model = Model.of(job)
    if not model.staged or not job.own.phases:
        return 0.0
    total = job.total.copy()
    for row in culprits:
        total[row, after] = stats.median(total[row, before])
    step = model.step_ns(total)
    return stats.median(step[after]) - stats.median(step[before])


def _is_selective(job: Observed, before: slice, after: slice, ratio: float) -> bool:
    """Whether a phase other than data loading, and not too short, takes as long as before."""
    whole = stats.median(job.total[:, before])
    for phase, own in job.own.items():
        usual = stats.median(own[:, before])
        if phase in (*UNNAMED, DATA_LOAD) or not usual >= NOTABLE * whole:
            continue
        if stats.median(risen(own, before, after)) <= UNCHANGED * (ratio - 1) * usual:
            return True
    return False


def _phase(job: Observed, before: slice, after: slice, whole: float) -> str | None:
    """The phase that carries the rise, by clearly more than its part of the step before."""
    total = stats.median(job.total[:, before])
    parts = {
        phase: (stats.median(risen(own, before, after)), stats.median(own[:, before]))
        for phase, own in job.own.items()
    }
    phase = max(parts, key=lambda name: parts[name][0], default=None)
    if phase is None or whole <= 0 or total <= 0:
        return None
    part, usual = parts[phase][0] / whole, parts[phase][1] / total
    return phase if part >= DOMINANT and part - usual >= STANDS_OUT else None


def _transfer(job: Observed, split: int) -> float:
    """Rise of the time data takes after the last arrival, summed over a step's collectives."""
    arrivals, columns = job.arrivals, len(job.line.steps)
    if arrivals is None:
        return 0.0
    known = (arrivals.step >= 0) & np.isfinite(arrivals.transfer_ns)
    total = stats.sums(arrivals.step[known], arrivals.transfer_ns[known], columns)
    before = total[job.line.warm_up : split]
    return stats.median(total[split:]) - stats.median(before) if before.any() else 0.0
