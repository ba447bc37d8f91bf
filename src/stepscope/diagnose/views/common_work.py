"""The time that all ranks compute at least in phases whose waiting is hidden: for rises that all
share.

Where the ends of operators are known, the time of a phase in which none was in progress is own
time. There is more: operators that were started ahead (FSDP's gathers) are in progress beside
computing. A rank that is a little faster than the last one waits in them all the time, so what is
left must not be compared between ranks. But if it becomes longer on the rank on which it is least,
then all ranks compute for longer.

Cost: one union of all operators. Cannot see: computing beside operators in progress.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from stepscope.diagnose.numeric.intervals import Spans, union_of_rows
from stepscope.diagnose.prepare.matching import arrivals
from stepscope.diagnose.views.hidden_waits import all_ends_known
from stepscope.diagnose.views.peers import comparison_groups
from stepscope.diagnose.views.phase_rows import MOSTLY, PhaseRows
from stepscope.window import NULL, Floats, Ints, Table, Window


def common_work(window: Window, rows: PhaseRows, hidden: Collection[str]) -> dict[str, Floats]:
    """Of each hidden pass the time outside of operators, `[rank, step]` in ns, of the peer that has
    the least of it: the same for all peers."""
    comm = window.table("comm_ops")
    phases = [name for name in hidden if name in rows.passes]
    if comm is None or not phases or not _ends_known(window, rows, comm):
        return {}
    busy = union_of_rows(rows.axis, rows.line.rows(comm.ints("rank")), comm, _in_progress)
    wanted = rows.names.equals(*phases)
    alone = np.full(len(rows.rank), np.nan)
    begin, end = rows.begin[wanted], rows.end[wanted]
    alone[wanted] = end - begin - busy.within(begin, end)
    peers = comparison_groups(window, None)
    each = zip(phases, rows.grids(alone, phases), strict=True)
    found = ((name, _least(own, peers)) for name, own in each)
    return {name: own for name, own in found if np.nanmax(own, initial=0.0) > 0}


def _ends_known(window: Window, rows: PhaseRows, comm: Table) -> bool:
    """Whether ends were recorded of most operators, and of each group within passes."""
    if not comm.has("end_ns") or not len(comm):
        return False
    known = float((comm.ints("end_ns") != NULL).mean())
    return known > MOSTLY and bool(all_ends_known(window, rows.line).all())


def _in_progress(comm: Table) -> Spans:
    end = comm.ints("end_ns")
    return arrivals(comm), end, end != NULL


def _least(own: Floats, peers: list[Ints]) -> Floats:
    """The least of the peers in each step; NaN where it is unknown of one."""
    found = np.full_like(own, np.nan)
    for group in peers:
        found[group] = own[group].min(axis=0)
    return found
