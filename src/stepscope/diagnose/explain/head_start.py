"""How far a host runs ahead of its device: which of the two waits for the other within one rank.

Fault: a host that is late, so that its device has nothing to do, as opposed to a slow device.
Paper: ARGUS (2026), section 9.4, sees host-side blocking by people looking at sparse launches.
What differs: a host that keeps ahead calls an operator long before its device comes to it; a late
host calls it when the device is already idle. So the mean time from call (`enqueue_ns`) to
beginning (`start_ns`), compared with the peers', shows which of the two is the bottleneck. Not the
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
128 ranks late ones have 0.02 to 0.18 left, and those with a slow device 0.97 and more. Our
simulator."""
LEAST_SHARE = 0.01
"""Share of the step: peers with a smaller head start show nothing. Our simulator."""


def relative(job: Observed, row: int, peers: Ints, first: int, stop: int) -> float | None:
    """The head start of one rank over its peers' in columns [first, stop); None where unknown."""
    usual = head_start_ns(job, peers, first, stop)
    if usual < max(LEAST_SHARE * job.line.typical_ns, 1.0):
        return None
    return head_start_ns(job, np.array([row]), first, stop) / usual


def head_start_ns(job: Observed, rows: Ints, first: int, stop: int) -> float:
    """Mean time from the host's call to the device's beginning; 0 where that was not recorded.

    More than a step does not count: a rank saved or evaluated in between.
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
