"""Steps of two lengths: every so many steps, or now and then, a step takes clearly longer.

Fault: whatever holds a job up in a part of its steps, without making any of them so long that it
stands out (`unsteady`), and without a trace in what was recorded: a function that runs every eighth
step, a rank that pauses and was not recorded, a throttled device for half a minute.
Paper: none. It accuses nobody; but a job that takes a fifth longer in a third of its steps, and
nothing shows why, is not healthy.
What is healthy: planned pauses, which are rare or cheap; work that differs from step to step, which
every rank does for at least half of what the step takes longer; and what becomes longer once.
Cost: one sort of the steps. Cannot see: long steps that differ in length, unless they keep a
distance; work that takes longer on all ranks alike because all of their devices are slower.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.diagnose.detect.steps.duties import RARE
from stepscope.diagnose.detect.steps.recurring import recurring
from stepscope.diagnose.detect.steps.unsteady import JITTER_COST
from stepscope.diagnose.finding import Unsteady
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.two_levels import long_kind
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.communication import loads
from stepscope.diagnose.thresholds import FAST, HALF
from stepscope.diagnose.views.unnamed import UNNAMED
from stepscope.diagnose.words.numbers import steps_of
from stepscope.window import Floats, Ints, Mask


class TwoLevels:
    """Steps of two lengths in turns, where neither work nor a plan explains the longer ones."""

    name = "two-levels"
    needs = Needs("steps|phases|comm_ops|kernels")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Unsteady]:
        if not job.own.phases:  # neither work nor a pause can be seen: `undecided` says so
            return
        long = _long(job)
        if not _is_frequent(job, long) or not _is_costly(job, long) or _is_work(job, long):
            return
        says, spikes = _says(job, long), tuple(np.flatnonzero(long).tolist())
        yield Unsteady(self.name, "unknown", says, slowdown=_ratio(job, long), spikes=spikes,
                       why=says)  # fmt: skip


def _long(job: Observed) -> Mask:
    """The columns of the longer kind, or those that come back at a regular distance; without pauses
    that may be planned."""
    long, skip = np.zeros(len(job.line.steps), np.bool_), job.line.warm_up
    long[skip:] = long_kind(job.period_ns[skip:])
    if not long.any():
        for one in recurring(job):
            long[one.columns] |= not one.rows
    for one in recurring(job) if long.any() else ():
        long[one.columns] &= _often(one.comb.columns)
    return long


def _is_frequent(job: Observed, long: Mask) -> bool:
    """Whether it is more than pauses by plan, and so little that the others show what is usual."""
    judged = long[job.line.warm_up :]
    return bool(judged.size and RARE < judged.mean() <= 1 - FAST and _often(np.flatnonzero(judged)))


def _often(at: Ints) -> bool:
    """Whether steps are more than pauses by plan from the first to the last."""
    return bool(at.size - 1 > RARE * (at[-1] - at[0]))


def _is_costly(job: Observed, long: Mask) -> bool:
    period = np.nan_to_num(job.period_ns)
    lost_ns = float((period[long] - _usual(job, job.period_ns, long)).sum())
    return lost_ns >= JITTER_COST * float(period[job.line.warm_up :].sum())


def _is_work(job: Observed, long: Mask) -> bool:
    """Whether what the rank does that does least grows by most of what the steps take longer."""
    least = _least_work(job)
    more = stats.median(least[long]) - _usual(job, least, long)
    longer = stats.median(job.period_ns[long]) - _usual(job, job.period_ns, long)
    return bool(more >= HALF * longer)


def _least_work(job: Observed) -> Floats:
    """How long any rank at least is in its phases, without loading and gaps, in each column."""
    spent = np.zeros(job.total.shape)
    for phase, own in job.own.items():
        if phase not in UNNAMED and not loads(phase):
            spent += np.nan_to_num(own)
    return np.asarray((spent + _hidden(job)).min(axis=0))


def _hidden(job: Observed) -> Floats:
    """The time in phases whose share of waiting is not known: all of it may be work."""
    table = job.window.table("phases")
    unknown = job.own.hidden_phases - set(job.own.phases)
    if table is None or not unknown:
        return np.zeros(job.line.shape)
    table = table.take(table.strings("phase").equals(*unknown))
    return job.line.sums(job.line.cells(table), np.maximum(table.floats("duration_ns"), 0.0))


def _usual(job: Observed, series: Floats, long: Mask) -> float:
    judged = np.arange(long.size) >= job.line.warm_up
    return stats.median(series[judged & ~long])


def _ratio(job: Observed, long: Mask) -> float:
    return stats.median(job.period_ns[long]) / max(_usual(job, job.period_ns, long), 1.0)


def _says(job: Observed, long: Mask) -> str:
    steps: Ints = job.line.steps[long]
    judged = len(job.line.steps) - job.line.warm_up
    ratio = _ratio(job, long)
    return (f"{steps.size} of {judged} steps take {ratio:.2f} times as long as the others "
            f"({steps_of(steps.tolist())})")  # fmt: skip
