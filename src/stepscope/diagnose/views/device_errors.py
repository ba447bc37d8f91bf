"""When the devices of ranks reported errors: ECC corrections of memory, and driver events (Xid).

Errors are evidence for a rank that is slow at the same time, but never blame it by themselves: many
healthy GPUs correct memory errors all the time.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.views.timeline import Timeline
from stepscope.window import Mask, Window

OF_DEVICE = ("ecc_", "xid")
"""Beginnings of the names of counters for errors of the GPU and its memory."""
SAMPLE_NS = 10**9
"""An error occurred up to a second before its sample, because processors sample once a second."""


def errors(window: Window, line: Timeline) -> Mask:
    """`[rank, step]`: where a rank's own device may have reported errors."""
    edges = np.zeros((len(line.ranks), len(line.steps) + 1), np.int64)
    table = window.table("hardware")
    if table is not None and len(line.steps):
        names = [one for one in table.strings("metric").values if one.startswith(OF_DEVICE)]
        rows = table.take(table.strings("metric").equals(*names) & (table.floats("value") > 0))
        row, time = line.rows(rows.ints("rank")), rows.ints("ts_ns")
        known = (row >= 0) & (line.column_at(time) >= 0)
        row, time = row[known], time[known]
        np.add.at(edges, (row, np.maximum(line.column_at(time - SAMPLE_NS), 0)), 1)
        np.add.at(edges, (row, line.column_at(time) + 1), -1)
    return np.asarray(edges.cumsum(axis=1)[:, :-1] > 0)
