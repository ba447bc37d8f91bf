"""Whether a rise that all ranks share is of their machines: other processes on the processors.

Paper: none. Cost: means over the samples of hosts. Cannot see: processes in other containers.
"""

from __future__ import annotations

from stepscope.diagnose.detect.regression.rise import Rise
from stepscope.diagnose.detect.steps.step_time import StepChange
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import HALF, OTHER_PROCESSES


def are_several_at_once(job: Observed) -> bool:
    """Whether the ranks of several hosts take longer from one step on, where they do themselves.

    Other jobs do not come to several machines at once. Where other processes were recorded, these
    have to agree.
    """
    if len(job.window.job.hosts) < 2 or not job.own.phases:
        return False
    taken = job.hardware("stranger_cpu_util", job.line.warm_up, len(job.line.steps))
    return not stats.median(taken) >= OTHER_PROCESSES


def are_others_there(job: Observed, rise: Rise, change: StepChange) -> bool:
    """Whether other processes use more of the processors than before, or are there while ranks wait
    for a processor by half of what they take longer.

    That they are there says nothing by itself: they may have been there before.
    """
    spans = (job.line.warm_up, change.split), (change.split, len(job.line.steps))
    before, taken = (stats.median(job.hardware("stranger_cpu_util", *one)) for one in spans)
    if taken - before >= OTHER_PROCESSES:
        return True
    share, now = (stats.median(job.hardware("run_delay", *one)) for one in spans)
    waited_ns = now * change.after_ns - share * change.before_ns
    return taken >= OTHER_PROCESSES and waited_ns >= HALF * rise.own_ns
