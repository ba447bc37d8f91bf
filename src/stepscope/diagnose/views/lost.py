"""Where rows of operators are known to be lost: what looks idle there may be communication."""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.views.timeline import Timeline
from stepscope.window import Mask, Window


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
