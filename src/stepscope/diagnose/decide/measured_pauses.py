"""What the pauses of a suspect cost, measured by how much longer steps are with them.

Nothing between the two has to be known: neither in which phase a pause was, nor who waited for it.
Cost: that of `detect.pause_cost`, per suspect.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.detect import pause_cost
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.window import Floats


def lost_to_pauses(job: Observed, one: Suspect) -> Floats | None:
    """What each step loses to pauses of a rank that only these make a suspect, beyond its peers'.

    None where steps are not longer with them, or nothing shows how long they would be without.
    """
    if one.phases or job.pauses is None or len(job.pauses) < 2:
        return None
    peers = stats.column_median(np.delete(job.pauses, one.row, axis=0))
    beyond, skip = np.maximum(job.pauses[one.row] - peers, 0.0), job.line.warm_up
    found, lost = pause_cost.lost_ns(job.line.job_period_ns[skip:], beyond[skip:]), beyond * 0.0
    lost[skip:][one.first - skip : one.stop - skip] = found[one.first - skip : one.stop - skip]
    return lost if lost.sum() > 0 else None
