"""All ranks wait for a processor all the time, because other processes use them.

Fault: a machine that training shares with others: a job of somebody else, a service, a build. No
rank is slower than its peers, and nothing ever became slow.
Paper: none. ARGUS (2026), table 6, recognises CPU contention by one rank that is slow in all
phases; here all are. The kernel counts how long a thread was runnable and did not run
(`run_delay`), and how much of a rank's processors processes outside the job use.
Rule: three quarters of the ranks share their processors with others (`OTHER_PROCESSES`). Ranks also
wait for each other where they are many: of the time for which the median rank waits, the others
take what they use of all that is used beside that rank. That is lost, and not more than their share
of the processors; and as those with a low priority take only what ranks leave, it has to be clearly
more than jobs usually lose (`account.belief`).
Cost: four means over the samples. Cannot see: jobs on devices, which go on while their hosts
wait; processes in other containers, which the recorder does not see.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.diagnose.account.belief import ORDINARY, odds, unusual_bits
from stepscope.diagnose.detect.hosts.quota_hosts import CROWDED_SCORE
from stepscope.diagnose.detect.ranks.in_turns import LEAST_LOSS
from stepscope.diagnose.detect.waste.user_code import MOST_RANKS
from stepscope.diagnose.finding import Decision, Waste
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.network.on_devices import on_devices
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import LEAST_SCORE, OTHER_PROCESSES
from stepscope.diagnose.words.numbers import percent
from stepscope.window import Floats


class BusyProcessors:
    """Processors that all ranks share with other processes, from the first step on."""

    name = "busy-processors"
    needs = Needs("hardware:run_delay")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Waste]:
        span = job.line.warm_up, len(job.line.steps)
        waiting, others, allowed, used = (job.hardware(metric, *span) for metric in (
            "run_delay", "stranger_cpu_util", "allowed_cpus", "cpu_util"))  # fmt: skip
        if (others >= OTHER_PROCESSES).mean() < MOST_RANKS or on_devices(job):
            return
        taken = np.minimum(others / np.maximum(allowed, 1.0), 1.0)
        theirs = waiting * others / (others + _beside(job, used))
        loss = min(stats.median(theirs), stats.median(taken))
        sure = min(odds(unusual_bits(loss, ORDINARY), loss), CROWDED_SCORE)
        if loss > LEAST_LOSS and sure >= LEAST_SCORE:
            yield _finding(job, stats.median(waiting), stats.median(others), loss, sure)


def _beside(job: Observed, used: Floats) -> Floats:
    """Cores that the other ranks of each rank's host use."""
    beside = np.zeros(used.size)
    for rows in job.host_rows:
        beside[rows] = np.nansum(used[rows]) - np.nan_to_num(used[rows])
    return beside


def _finding(
    job: Observed, waiting: float, used: float, loss: float, sure: float
) -> Waste:  # fmt: skip
    line = job.line
    first, stop = line.warm_up, len(line.steps)
    share = percent(min(waiting, 1.0))
    says = f"all ranks wait for a processor for {share} of their time, beside other processes"
    says += f" that use {used:.1f} of their cores"
    rule = Decision("waits-for-processor", True, waiting, LEAST_LOSS, says)
    return Waste(
        BusyProcessors.name, "contention", says, steps=line.span(first, stop),
        time_ns=line.span_ns(first, stop), slowdown=1 / max(1 - loss, 0.01),
        lost_fraction=loss, victims=0, score=sure, says=says, decisions=(rule,),
        values={"run_delay": waiting, "other_processes": used},
    )  # fmt: skip
