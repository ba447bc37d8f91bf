"""Times of operators that were not recorded: stand-ins for those of host calls, and none for
others.

Where only device times were recorded, `enqueue_ns` is null or absent. The operator was called no
later than it started, so `start_ns` stands in. An operator that never started is behind all that
its rank's device did start: the last of these starts stands in, which keeps the order of what ranks
wait in. A row without any time that is known to be finished stays without a call.

A stand-in says nothing about the host: column `has_call`, added where any stands in, tells which
rows have a call of their own.

Columns of times that are null in every row are removed. With NCCL, a host call returns at once, and
a collector of host calls learns neither when the device started an operator nor when it ended. A
null `end_ns` otherwise means an operator that never ended. So the ends count as unrecorded only if
some operator is known to have ended all the same: its `state` says so, or steps were finished after
the first call.
"""

from __future__ import annotations

import numpy as np

from stepscope.window import NULL, Ints, Mask, Table, Window

CALL, START, END = "enqueue_ns", "start_ns", "end_ns"
HAS_CALL = "has_call"
"""1 if a row's call was recorded, 0 if another time stands in. No collector writes it."""


def with_call_times(comm: Table) -> Table:
    """The operators with an `enqueue_ns` in every row for which any time is known."""
    if not comm.has(START) or not (comm.has(CALL) or len(comm)):
        return comm
    if not comm.has(CALL):
        comm = comm.with_column(CALL, np.full(len(comm), NULL))
    elif not any(bool((part.ints(CALL) == NULL).any()) for _, part in comm.parts()):
        return comm
    known = comm.ints(CALL) != NULL
    call = np.where(known, comm.ints(CALL), comm.ints(START))
    comm = comm.with_column(HAS_CALL, known.astype(np.int64))
    return comm.with_column(CALL, _behind(comm, call))


def recorded_calls(comm: Table) -> Mask:
    """Rows whose host call was recorded."""
    if not comm.has(HAS_CALL):
        return np.ones(len(comm), np.bool_)
    return np.asarray(comm.ints(HAS_CALL) > 0)


def next_calls(rank: Ints, called_ns: Ints) -> Ints:
    """When the rank of each row called again; NULL if it did not."""
    order = np.lexsort((called_ns, rank))
    same = rank[order[1:]] == rank[order[:-1]]
    found = np.full(rank.size, NULL)
    found[order[:-1][same]] = called_ns[order[1:][same]]
    return found


def _behind(comm: Table, call: Ints) -> Ints:
    """The time of each call; for operators that never started, the last known one of their rank."""
    rows = np.flatnonzero((call == NULL) & _unfinished(comm))
    if not rows.size or not comm.has("rank"):
        return call
    rank = np.maximum(comm.ints("rank"), -1) + 1
    last = np.full(int(rank.max()) + 1, NULL)
    np.maximum.at(last, rank, call)
    filled = call.copy()
    filled[rows] = last[rank[rows]]
    return filled


def _unfinished(comm: Table) -> Mask:
    never = np.ones(len(comm), np.bool_)
    if comm.has(END):
        never &= comm.ints(END) == NULL
    if comm.has("state"):
        never &= ~comm.strings("state").equals("done")
    return never


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
