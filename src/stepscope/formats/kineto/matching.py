"""Numbers the collectives of a job so that members find each other although events were dropped.

Counting calls from the beginning of a trace goes wrong for good with the first event that a rank's
profiler lost, or where one began earlier. Torch's own sequence number does not, where the trace
has it. Else operators are counted anew in each annotated step, apart by operator and size (where
members must give equal sizes): a lost event spoils only its likes in its step.
"""

from __future__ import annotations

import numpy as np

from stepscope.trace import UNKNOWN_PEER
from stepscope.window import NULL, Ints, Mask, Table, numbered, occurrence

_EQUAL_SIZES = ("AllReduce", "Broadcast", "Reduce")


def matched(comm: Table, annotated: bool) -> Table:
    """The table with a column `match`, unless the order alone must do."""
    p2p = comm.strings("op").equals("Send", "Recv")
    if _numbered(comm, p2p):
        count, key = _channels(comm, p2p), comm.ints("sequence")
        match = np.where(p2p, count, numbered(group_of(comm), key))
        known = np.where(p2p, count >= 0, True)
    elif annotated:
        match = np.where(p2p, _channels(comm, p2p, comm.ints("step")), _by_step(comm))
        known = (comm.ints("step") != NULL) & (match >= 0)
    else:
        return comm
    # sends and collectives never belong together
    return comm.with_column("match", np.where(known, 2 * match + p2p, NULL))


def group_of(comm: Table) -> Ints:
    return comm.strings("group").codes.astype(np.int64)


def _numbered(comm: Table, p2p: Mask) -> bool:
    """Whether every collective carries torch's sequence number, each only once on a rank."""
    rows = comm.take(~p2p)
    if not len(rows) or (rows.ints("sequence") == NULL).any():
        return False
    keys = numbered(rows.ints("rank"), group_of(rows), rows.ints("sequence"))
    return int(keys.max()) + 1 == len(rows)


def _by_step(comm: Table) -> Ints:
    op = comm.strings("op")
    size = np.where(op.equals(*_EQUAL_SIZES), comm.ints("bytes"), NULL)
    like = (group_of(comm), comm.ints("step"), op.codes.astype(np.int64), size)
    return numbered(*like, occurrence(numbered(comm.ints("rank"), *like), comm.ints("seq")))


def _channels(comm: Table, p2p: Mask, *more: Ints) -> Ints:
    """The k-th send from one rank to another with the k-th receive, -1 where a rank is unknown."""
    rank, peer = comm.ints("rank"), comm.ints("peer")
    sends = comm.strings("op").equals("Send")
    pair = (group_of(comm), np.where(sends, rank, peer), np.where(sends, peer, rank), *more)
    count = occurrence(numbered(sends.astype(np.int64), *pair), comm.ints("seq"))
    return np.where(p2p & (peer > UNKNOWN_PEER), numbered(*pair, count), -1)
