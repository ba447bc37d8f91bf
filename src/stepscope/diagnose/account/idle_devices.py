"""How long each device had nothing to do because its host had launched nothing, beyond its peers.

Only where kernels were recorded with their launches, as in profiler traces. A device that is idle
takes part in no communication, so whoever communicates with it waits.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.peers import above_peers
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.views.unnamed import is_staged
from stepscope.window import Floats


def idle_beyond_peers(job: Observed) -> Floats | None:
    """`[rank, step]`: time idle because nothing was launched, beyond the peers' median, in ns.

    It counts no further than the median rank communicates and computes nothing meanwhile: else
    nobody waits. None where this was not recorded, or stages of a pipeline have no equals.
    """
    if job.window.table("kernels") is None or job.breakdown is None:
        return None
    groups = job.groups(None)
    if is_staged(job.window) and any(rows.size < 2 for rows in groups):
        return None
    beyond = np.nan_to_num(above_peers(device_ns(job, "host_wait_ns"), groups))
    waits = stats.column_median(device_ns(job, "exposed_ns"))
    return np.clip(beyond, 0.0, np.nan_to_num(waits))


def device_ns(job: Observed, part: str) -> Floats:
    """`[rank, step]`: how long devices do something, a column of `views.breakdown`; NaN unknown."""
    grid = np.full(job.line.shape, np.nan)
    if job.breakdown is not None:
        steps = job.breakdown.steps
        row, column = job.line.places(steps)
        known = (row >= 0) & (column >= 0)
        grid[row[known], column[known]] = steps.ints(part)[known]
    return grid
