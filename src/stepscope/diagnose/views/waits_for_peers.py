"""How long ranks wait in each step for the slowest of their replicas, by each operator.

Where replicas meet many times in a step, as for each layer of fully sharded parameters, every
meeting waits for its own slowest rank. Over a whole step those ranks may be equally fast, so own
times per step do not show it; the waiting in each operator does.
Cost: one sort of `comm_ops`. Cannot see: waiting that no collector measured (`blocked_ns`).
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.prepare.matching import SYNCHRONIZING, match
from stepscope.diagnose.views.hidden_waits import BLOCKING_KINDS
from stepscope.diagnose.views.timeline import Timeline
from stepscope.window import NULL, Floats, Window


def waited_for_replicas(window: Window, line: Timeline) -> Floats | None:
    """What the median rank waits in each step for others to arrive, in ns; None if not measured.

    The member that waits least for an operator arrived last, and waits for its transfer alone.
    """
    comm = window.table("comm_ops")
    if comm is None or not comm.has("blocked_ns"):
        return None
    within = {group.id for group in window.groups if group.kind not in BLOCKING_KINDS}
    comm = comm.take(
        (comm.ints("blocked_ns") != NULL)
        & comm.strings("group").equals(*within)
        & comm.strings("op").equals(*SYNCHRONIZING)
    )
    matched = match(comm)
    order, bounds = matched.order, matched.bounds
    if not order.size:
        return None
    blocked = comm.ints("blocked_ns")[order]
    least = np.repeat(np.minimum.reduceat(blocked, bounds[:-1]), np.diff(bounds))
    return stats.column_median(line.sums(line.cells(comm)[order], blocked - least))
