"""Stand-ins for the times of host calls that were not recorded.

Where only device times were recorded, `enqueue_ns` is null or absent. The operator was called no
later than it started, so `start_ns` stands in. An operator that never started is behind all that
its rank's device did start: the last of these starts stands in, which keeps the order of what ranks
wait in. A row without any time that is known to be finished stays without a call.

A stand-in says nothing about the host: column `has_call`, added where any stands in, tells which
rows have a call of their own.
"""

from __future__ import annotations

import numpy as np

from stepscope.window import NULL, Ints, Mask, Table

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
