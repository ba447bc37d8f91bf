"""How far a host runs ahead of its device: who waits for whom within one rank.

Fault: a host that is late, so that its device has nothing to do, told from a device that is slow.
Paper: ARGUS (2026), section 9.4, sees host-side blocking by people looking at sparse launches.
Ours: a host calls an operator long before its device comes to it, as long as it keeps ahead; a host
that is late calls it when the device is already idle. So the mean time from call (`enqueue_ns`) to
beginning (`start_ns`), set against the peers', says which of the two is the bottleneck. Not the
median: where operators follow each other closely, half of them wait for their stream alone.
Cost: means over the operators of the ranks asked for.
Cannot see: jobs whose recorder knows the call only, or whose hosts never run ahead (gloo).
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.observed import Observed
from stepscope.window import NULL, Ints

LATE = 0.25
"""A host with less than a quarter of its peers' head start is late. Of 40 simulated jobs of 64 and
128 ranks late ones have 0.02 to 0.18 left, and those with a slow device 0.97 and more."""
LEAST_SHARE = 0.01
"""Of the step: peers that are hardly ahead themselves tell nothing."""


def relative(job: Observed, row: int, peers: Ints, first: int, stop: int) -> float | None:
    """The head start of one rank over its peers' in columns [first, stop); None where unknown."""
    usual = head_start_ns(job, peers, first, stop)
    if usual < max(LEAST_SHARE * job.line.typical_ns, 1.0):
        return None
    return head_start_ns(job, np.array([row]), first, stop) / usual


def head_start_ns(job: Observed, rows: Ints, first: int, stop: int) -> float:
    """Mean time from the host's call to the device's beginning; 0 where that was not recorded.

    Longer than a step is no head start: somebody saved or evaluated in between.
    """
    comm = job.window.table("comm_ops")
    if comm is None or not comm.has("start_ns", "step"):
        return 0.0
    wanted = np.zeros(len(job.line.ranks) + 1, np.bool_)
    wanted[rows] = True  # and the last one, for ranks that are not on the grid, is not
    own = comm.take(np.flatnonzero(wanted[job.line.rows(comm.ints("rank"))]))
    begun, column = own.ints("start_ns"), job.line.columns(own.ints("step"))
    keep = (begun != NULL) & (column >= first) & (column < stop)
    ahead = np.minimum((begun - own.ints("enqueue_ns"))[keep], job.line.typical_ns)
    return float(ahead.mean()) if ahead.size else 0.0
