"""Where rows were lost: what looks idle there may be communication, or a phase.

Recorders count the operators that they lose (`losses`). Of phases, their numbers show it.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.views.phase_rows import PhaseRows
from stepscope.diagnose.views.timeline import Timeline
from stepscope.window import Ints, Mask, Window

COMPLETE = 0.75
"""Of the numbers of rows in different steps, or of different ranks, the one at this quantile is
complete, even if rows are missing in most of them. Our choice."""


def lost_operators(window: Window, line: Timeline) -> Mask:
    """The ranks and steps of which rows of `comm_ops` were lost, `[rank, step]`."""
    found = np.zeros(line.shape, np.bool_)
    losses = window.table("losses")
    if losses is None:
        return found
    losses = losses.take(losses.strings("table").equals("comm_ops"))
    row = line.rows(losses.ints("rank"))
    first, last = line.column_at(losses.ints("start_ns")), line.column_at(losses.ints("end_ns"))
    for at in np.flatnonzero(row >= 0).tolist():
        found[row[at], max(first[at], 0) : last[at] + 1] = True
    return found


def lost_phases(rows: PhaseRows) -> Mask:
    """The ranks and steps of which rows of `phases` were lost, `[rank, step]`. A rank has fewer
    rows of a phase than in other steps, and those that have as many as it have them all: nobody
    does less work alone, or leaves out an exchange."""
    lost = np.zeros(rows.line.shape, np.bool_)
    for counted in rows.counted(rows.names.values):
        usual = _complete(counted, axis=1)
        for number in np.unique(usual[usual > 0]).tolist():
            alike = usual == number
            full = _complete(counted[alike], axis=0) >= number
            lost[alike] |= full & (counted[alike] < number)
    return lost


def _complete(counted: Ints, axis: int) -> Ints:
    """The number that a quarter at least reaches: so many there are where none were lost."""
    return np.asarray(np.quantile(counted, COMPLETE, axis=axis, method="lower"))
