"""How long a step would take with slow transfers at their usual level.

Where steps were faster before, by how much they got longer, as far as the transfers account for it
(`delay.lost_per_step`). Else by the rank whose transfers together exceed their usual time the most,
but no more than that rank has no work of its own. Of a ring that was never faster, and whose
equals pass the same hosts, nothing shows how fast it could be; ends that spread show that one hop
is slower than the others by a factor: the least of these, two, is assumed.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.network.delay import Delay, idle_ns, longest_delay, lost_per_step
from stepscope.diagnose.network.slow_hosts import Suspects
from stepscope.diagnose.network.transfers import Transfers
from stepscope.diagnose.observed import Observed
from stepscope.window import Mask, union

HALF = 0.5
"""Of a transfer that one hop makes twice as long."""


def lost_ns(
    job: Observed, moved: Transfers, found: Suspects, now: Mask, usual: Mask | None
) -> float:
    """Time lost per step in the columns `now`, compared with the columns `usual` if there are
    any."""
    excess = found.slowness.excess_ns.copy()
    for one in found.ends if usual is None else ():
        # its equals may be as slow: all rings of a job may pass the same host
        excess[one.place] = max(excess[one.place], HALF * _under_way_ns(moved, one.place, now))
    longest = longest_delay(moved.places, excess[:, None])
    costliest = moved.places[int(excess.argmax())]
    if usual is None:
        return min(longest, idle_ns(job, costliest.members, now))
    return lost_per_step(Delay(longest, longest), job.line.job_period_ns, now, usual, False, False)


def _under_way_ns(moved: Transfers, place: int, now: Mask) -> float:
    """Time per step in which data of a place moved; some of its operators run beside others."""
    here = np.flatnonzero((moved.place == place) & now[moved.column])
    took = moved.took_ns[here].astype(np.int64)
    end = moved.left_ns[here]
    busy = union(end - took, end)
    return int((busy.end - busy.start).sum()) / int(now.sum())
