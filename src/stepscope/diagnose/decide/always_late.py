"""A rank that makes the others wait in collectives, although nothing recorded of it says why.

Fault: whatever slows a rank down where its waiting was not marked, for example in a thread that no
recorder follows: all ranks seem to work equally long then, because waiting looks like work.
Ours: lateness that takes turns is noise, and cancels out; what one rank causes beyond what any
other one does is a loss. Nobody is accused by that alone, but the job is not healthy either.
Of the operators of a step the one with the longest wait counts: ranks that do not wait in between
are late for all of them.
Cost: one pass over the last arrivals. Cannot see: lateness that adds up over a step's operators.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.observed import Observed
from stepscope.diagnose.views.arrivals import Arrivals
from stepscope.diagnose.views.peers import across_stages
from stepscope.window import Floats


def always_late(job: Observed, least: float) -> str:
    """Which rank alone makes the others wait, and for how long; empty if that takes less than this
    share of a step."""
    arrivals = job.arrivals
    if arrivals is None or len(job.line.ranks) < 2 or len(job.line.steps) <= job.line.warm_up:
        return ""
    caused = _caused(job, arrivals)[:, job.line.warm_up :].mean(axis=1)
    row = int(np.argmax(caused))
    net_ns = caused[row] - np.partition(caused, -2)[-2]
    if net_ns <= least * job.line.typical_ns:
        return ""
    return (
        f"rank {job.line.ranks[row]} arrives last in collectives and makes the others wait for "
        f"{net_ns / 1e6:.1f} ms of a step of {job.line.typical_ns / 1e6:.1f} ms, and nothing "
        "recorded shows why"
    )


def _caused(job: Observed, arrivals: Arrivals) -> Floats:
    """`[rank, step]`, the longest time for which the rank alone made others wait, in ns."""
    caused = np.zeros((len(job.line.ranks), len(job.line.steps)))
    judged = (arrivals.step >= 0) & ~arrivals.group.equals(*across_stages(job.window))
    where = arrivals.last_rank[judged], arrivals.step[judged]
    np.maximum.at(caused, where, arrivals.alone_ns[judged])
    return caused
