"""Jobs whose ranks do not wait for each other, and what a slow rank costs them.

Workers of a parameter server train asynchronously: nobody waits for a slow one, and the others go
on at their own speed. What counts there is how many steps all ranks together do per second. A slow
rank lowers that by what it takes longer itself, and by nothing of its peers'.

Ranks that meet in every step are never more than a step apart. So a rank that falls behind by
several steps, and stays behind, shows that nobody waits for it. Medians of the first and the last
quarter are compared: between two of its meetings a rank may be late for a moment. Clocks of hosts
drift as well, but less.
Paper: none. Cost: two medians of `[rank, step]`.
Cannot see: whether ranks meet that are all equally fast, which makes no difference; ranks that meet
less often than in the recorded steps.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.prepare.communication import communicates
from stepscope.diagnose.prepare.matching import POINT_TO_POINT, SYNCHRONIZING
from stepscope.diagnose.views.timeline import Timeline
from stepscope.window import NULL, Floats, Window

APART = 2.0
"""Steps: ranks that meet in every step are less than one apart in the last quarter, and were less
than one apart in the first. Statistics."""
DRIFT = 1e-3
"""Part of the time by which clocks of two hosts may run apart: ten times the error of a plain
quartz clock, 100 parts per million. Our choice."""
LEAST_STEPS = 8
"""Steps, of which a quarter has a median. Statistics."""


def is_asynchronous(window: Window, line: Timeline) -> bool:
    """Whether some rank falls behind the others by steps, or gets ahead, and nobody waits."""
    if _meets(window) or len(line.ranks) < 2:
        return False
    apart = np.nan_to_num(np.abs(fell_behind_ns(line)))
    return bool(apart.max(initial=0.0) > _least_ns(line))


def fell_behind_ns(line: Timeline) -> Floats:
    """By how much each rank began steps later, against the median rank, in the last quarter of the
    judged steps than in the first; NaN unknown, empty with few steps."""
    start = line.start_ns[:, line.warm_up :]
    quarter = start.shape[1] // 4
    if start.shape[1] < LEAST_STEPS or not (start != NULL).any():
        return np.zeros(0)
    known = start != NULL
    since = np.where(known, start - start[known].min(), np.nan)
    late = since - stats.column_median(since)
    return np.asarray(stats.row_medians(late[:, -quarter:]) - stats.row_medians(late[:, :quarter]))


def step_ns(line: Timeline) -> Floats:
    """Of each step, the time in which all ranks together do as many steps as there are ranks."""
    period = line.period_ns
    known = np.isfinite(period) & (period > 0)
    rate = np.where(known, 1 / np.where(known, period, 1.0), 0.0).sum(axis=0)
    return np.asarray(np.where(rate > 0, known.sum(axis=0) / np.where(rate > 0, rate, 1.0), np.nan))


def _meets(window: Window) -> bool:
    """Whether operators, or phases by their names, show that ranks wait for each other: then starts
    that say otherwise may be made up from durations."""
    comm, phases = window.table("comm_ops"), window.table("phases")
    if comm is not None and comm.strings("op").equals(*SYNCHRONIZING, *POINT_TO_POINT).any():
        return True
    return phases is not None and any(map(communicates, phases.strings("phase").values))


def _least_ns(line: Timeline) -> float:
    lasted = float(np.nansum(line.job_period_ns[line.warm_up :]))
    return max(APART * line.typical_ns, DRIFT * lasted)
