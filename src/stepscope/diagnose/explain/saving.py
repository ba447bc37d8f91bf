"""Whether a rank that pauses copies memory of its device to its host meanwhile: as it does to save.

A checkpoint in one of a trace's few steps looks like a rank whose host is late in that step. Nobody
can tell from so few steps whether it is planned; but no other rank copies anything then.
Paper: none. Cost: one pass over the kernels. Cannot see: saving on hosts without devices.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import INFLATED, Suspect
from stepscope.diagnose.views.breakdown import copies_to_host


def saves(job: Observed, suspect: Suspect) -> bool:
    """Whether a notable part of a single pause is copies to the host that its peers do not make."""
    kernels = job.window.table("kernels")
    if kernels is None or not suspect.alone or not suspect.excess_ns > 0:
        return False
    names = kernels.strings("kernel")
    copies = np.array([copies_to_host(name) for name in names.values] or [False])
    row, column = job.line.places(kernels)
    first, stop = suspect.worst or (suspect.first, suspect.stop)
    # a host saves at the end of a step what its device copies at the beginning of the next
    inside = copies[names.codes] & (row >= 0) & (column >= first - 1) & (column <= stop)
    spent = stats.sums(row[inside], kernels.floats("duration_ns")[inside], len(job.line.ranks))
    others = np.delete(spent, suspect.row)
    usual = stats.median(others) if others.size else 0.0
    return bool(spent[suspect.row] - usual >= INFLATED * suspect.whole_ns)
