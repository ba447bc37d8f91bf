"""What culprits cost that nobody waits for: their own part of the steps that all ranks do.

With the culprits at their peers' speed, all ranks together would do so many more steps per second.
Each has its own part of that, so that the parts add up (`views.asynchronous`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from stepscope.diagnose.finding import Finding
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.window import Ints

MOST = 0.99
"""Part of its steps that a rank may take longer: more is an error of measurement. Our choice."""

Kind = TypeVar("Kind", bound=Finding)


def at_most(job: Observed, one: Kind) -> Kind:
    """A finding that costs no more than all steps of its ranks, where nobody waits for them."""
    if not (job.asynchronous and one.ranks and one.lost_fraction):
        return one
    theirs = len(one.ranks) / len(job.line.ranks)
    return replace(one, lost_fraction=min(one.lost_fraction, theirs))


def lost_by(
    job: Observed, culprits: Sequence[Suspect], parts: Sequence[slice | Ints]
) -> tuple[float, ...]:  # fmt: skip
    """The share of the job's steps that each culprit costs in its part of the columns."""
    return tuple(_share(job, one, culprits, part)
                 for one, part in zip(culprits, parts, strict=True))  # fmt: skip


def _share(
    job: Observed, one: Suspect, culprits: Sequence[Suspect], part: slice | Ints
) -> float:  # fmt: skip
    took = stats.row_means(job.line.period_ns[:, part])
    healed = took.copy()
    for other in {each.row: each for each in (*culprits, one)}.values():
        healed[other.row] = _healed_ns(took[other.row], other, job, part)
    rates, now = 1 / healed[np.isfinite(healed)], took[one.row]
    if not np.isfinite(now) or not rates.size:
        return 0.0
    return float(max(1 / healed[one.row] - 1 / now, 0.0) / rates.sum())


def _healed_ns(took: float, one: Suspect, job: Observed, part: slice | Ints) -> float:
    steps = np.arange(len(job.line.steps))[part].size
    excess = one.whole_ns / max(steps, 1)
    return float(took - np.clip(excess, 0.0, MOST * took))
