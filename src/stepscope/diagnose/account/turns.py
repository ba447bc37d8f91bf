"""Whether what a job loses stays with one rank, or takes turns among its ranks.

What stays with one rank is that rank's fault, or its work. What takes turns is the job's: no rank
does it often enough to be a suspect, and all wait for another one each time. Losses count by what
they cost: the steps around a slow stretch must not outvote it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import HALF
from stepscope.window import Floats, Ints

CHANGING = 0.75
"""Largest part of the steps in which one replica may have the slowest rank: each of two has it in
half of them. Our simulator."""


def stays_with_one(rows: Ints, lost: Floats) -> bool:
    """Whether one rank has half of what is lost, or nothing is.

    Args:
        rows: whose each loss is.
        lost: how much each is.
    """
    return not np.bincount(rows, lost).max() < HALF * lost.sum()


def changes(job: Observed, excess: Floats) -> bool:
    """Whether the slowest rank is in different replicas of the model in different steps, and on
    different hosts, if there are several.

    Steps count by what they cost: those around a slow stretch must not outvote it.
    """
    known = np.isfinite(excess).any(axis=0)
    if not known.any():
        return False
    slowest = np.nanargmax(excess[:, known], axis=0)
    costs = np.maximum(np.nanmax(excess[:, known], axis=0), 0.0)
    hosts = [frozenset(one.ranks) for one in job.window.job.hosts]
    units = [_units(job, job.replicas), *([_units(job, hosts)] if len(hosts) > 1 else [])]
    most = max(float(np.bincount(unit[slowest], costs).max()) for unit in units)
    return most <= CHANGING * float(costs.sum()) and bool(costs.any())


def _units(job: Observed, members: Sequence[frozenset[int]]) -> Ints:
    """For each row the number of the unit that its rank is in; one more for those in none."""
    of = {rank: at for at, ranks in enumerate(members) for rank in ranks}
    return np.array([of.get(int(rank), len(members)) for rank in job.line.ranks], np.int64)
