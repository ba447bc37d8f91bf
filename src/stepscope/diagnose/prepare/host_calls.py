"""Removes times of operators that were not recorded: columns that are null in every row.

With NCCL, a host call returns at once, and a collector of host calls learns neither when the device
started an operator nor when it ended. A null `end_ns` otherwise means an operator that never ended.
So the ends count as unrecorded only if some operator is known to have ended all the same: its
`state` says so, or steps were finished after the first call.
"""

from __future__ import annotations

import numpy as np

from stepscope.window import NULL, Table, Window


def without_unrecorded_times(window: Window) -> Window:
    """The window whose `comm_ops` has no column `start_ns` or `end_ns` of nulls alone."""
    comm = window.table("comm_ops")
    if comm is None or not len(comm):
        return window
    unknown = {name for name in ("start_ns", "end_ns") if comm.has(name) and _is_null(comm, name)}
    if "end_ns" in unknown and not _some_ended(window, comm):
        unknown.remove("end_ns")
    if not unknown:
        return window
    kept = {name: column for name, column in comm.columns.items() if name not in unknown}
    return Window(window.job, {**window.tables, "comm_ops": Table(kept)})


def _is_null(comm: Table, column: str) -> bool:
    return all(bool((part.ints(column) == NULL).all()) for _, part in comm.parts())


def _some_ended(window: Window, comm: Table) -> bool:
    """Whether an operator is known to have ended, at an unknown time."""
    if comm.has("state") and comm.strings("state").equals("done").any():
        return True
    return last_step_end_ns(window) > int(comm.ints("enqueue_ns").min())


def last_step_end_ns(window: Window) -> int:
    """When the last step of any rank ended; NULL if none did."""
    steps = window.table("steps")
    if steps is None or not steps.has("step"):
        return NULL
    return int(np.max(steps.ints("start_ns") + steps.ints("duration_ns"), initial=NULL))
