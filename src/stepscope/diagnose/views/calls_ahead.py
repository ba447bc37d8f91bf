"""Whether hosts call collectives ahead of their devices, so that a call is no arrival.

A host that runs ahead calls an operator while its device still computes what the operator sends.
Whose call is last then says which host is behind, and nothing of which device is late.
Cost: two sorts of rows by rank and step. Cannot see: anything where phases do not say whether they
may contain waiting, or where the operator's own start was recorded.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.prepare.matching import SYNCHRONIZING
from stepscope.diagnose.views.awaited import CLOSE_NS
from stepscope.diagnose.views.timeline import Timeline
from stepscope.trace import BACKWARD
from stepscope.window import NULL, Ints, Table, Window

MOSTLY = 0.5
"""Part of the ranks' steps in which the last call comes before the data is there. Our choice."""


def calls_ahead(window: Window, line: Timeline, comm: Table) -> bool:
    """Whether the last collective of most steps is called before the backward pass has ended.

    All that a step computes is there for its last collective. Only passes that are known to contain
    no waiting count: one that waits for its gradients ends after their exchange.
    """
    phases = window.table("phases")
    if phases is None or not phases.has("waits") or comm.knows("start_ns"):
        return False
    passes = phases.take(phases.strings("phase").equals(BACKWARD) & (phases.ints("waits") == 0))
    end = passes.ints("start_ns") + passes.ints("duration_ns")
    calls = comm.take(comm.strings("op").equals(*SYNCHRONIZING))
    done = _latest(line, passes, end)
    called = _latest(line, calls, calls.ints("enqueue_ns"))
    known = (done != NULL) & (called != NULL)
    return bool(known.any() and (called < done - CLOSE_NS)[known].mean() > MOSTLY)


def _latest(line: Timeline, table: Table, time_ns: Ints) -> Ints:
    """The latest time of each rank and step, as one row; NULL where there is none."""
    cell = line.cells(table)
    known = (cell >= 0) & (time_ns != NULL)
    found = np.full(len(line.ranks) * len(line.steps), NULL)
    np.maximum.at(found, cell[known], time_ns[known])
    return found
