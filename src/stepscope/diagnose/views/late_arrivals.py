"""What the last rank does longer than all others between two operators of a hidden phase.

All ranks leave an operator together, and the last one to arrive at the next waits for nobody in it.
So by how much it comes later than the second last is its own time, wherever the others wait, and
whatever its device or host did meanwhile. That shows a rank that stands still now and then within a
pass, when the others wait for it in the middle of theirs.

What a rank was late by when it entered the phase is no work in it, and is taken out. The rule holds
where every operator is one of all ranks: else the last one may have waited in another.

Cost: one sort of `comm_ops`. Cannot see: two ranks that are late at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.views.arrivals import Arrivals, collect_arrivals
from stepscope.diagnose.views.phase_rows import PhaseRows
from stepscope.diagnose.views.unnamed import all_waits_recorded
from stepscope.window import Floats, Mask, Window


def late_within(window: Window, rows: PhaseRows, phases: Sequence[str]) -> dict[str, Floats]:
    """For how long each rank alone kept all others waiting in operators within these phases,
    `[rank, step]` in ns; empty if unknown."""
    comm = window.table("comm_ops")
    if comm is None or rows.made_up or not all_waits_recorded(window, comm):
        return {}
    if not _are_of_all(window, set(comm.strings("group").values)):
        return {}
    arrivals = collect_arrivals(window, rows.line)
    if arrivals is None:
        return {}
    return {name: _late_in(rows, arrivals, rows.names.equals(name)) for name in phases}


def _are_of_all(window: Window, groups: set[str]) -> bool:
    """Whether every recorded rank is in each of these groups."""
    ranks = frozenset(window.ranks)
    return all(ranks <= set(group.ranks) for group in window.groups if group.id in groups)


def _late_in(rows: PhaseRows, arrivals: Arrivals, wanted: Mask) -> Floats:
    """The same of the rows of one phase."""
    shape = len(rows.line.ranks), len(rows.line.steps)
    last_ns = np.maximum.reduceat(arrivals.arrive_ns, arrivals.begins)
    at = rows.axis.at(arrivals.last_rank, last_ns)
    phase = rows.union_of(wanted)
    inside = phase.holds(at) & (arrivals.step >= 0)
    cell = arrivals.last_rank[inside] * shape[1] + arrivals.step[inside]
    alone: Floats = stats.sums(cell, arrivals.alone_ns[inside], shape[0] * shape[1])
    return np.asarray((alone.reshape(shape) - _late_at_entry(rows, wanted)).clip(0.0))


def _late_at_entry(rows: PhaseRows, wanted: Mask) -> Floats:
    """By how much later than the median rank each rank enters the phase for the first time."""
    shape = len(rows.line.ranks), len(rows.line.steps)
    origin = int(rows.start[wanted].min()) if wanted.any() else 0
    first = np.full(shape[0] * shape[1], np.inf)
    np.minimum.at(first, rows.cell[wanted], (rows.start[wanted] - origin).astype(np.float64))
    entered = np.where(np.isfinite(first), first, np.nan).reshape(shape)
    return np.nan_to_num(entered - stats.column_median(entered)).clip(0.0)
