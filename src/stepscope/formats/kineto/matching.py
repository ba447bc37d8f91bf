"""Numbers the collectives of a job so that members match although events were dropped.

Counting calls from the beginning of a trace fails for good after the first event that a profiler
lost, or if one profiler began earlier. Torch's own sequence number, if recorded, does not have this
problem. Otherwise operators are counted within each annotated step, separately by operator and size
(where members must have equal sizes): a lost event affects only such operators in its step.
"""

from __future__ import annotations

import numpy as np

from stepscope.trace import UNKNOWN_PEER
from stepscope.window import NULL, Ints, Mask, Table, numbered, occurrence

EQUAL_SIZES = ("AllReduce", "Broadcast", "Reduce")


def matched(comm: Table, annotated: bool, lossy: Mask) -> Table:
    """Adds a column `match`, unless only the order is available.

    Args:
        annotated: whether steps are marked.
        lossy: rows of ranks of which others were lost (`lossy`): their order says nothing.
    """
    p2p = comm.strings("op").equals("Send", "Recv")
    if _numbered(comm, p2p):
        count, key = _channels(comm, p2p), comm.ints("sequence")
        match = np.where(p2p, count, numbered(group_of(comm), key))
        known = np.where(p2p, count >= 0, True)
    elif annotated:
        match = np.where(p2p, _channels(comm, p2p, comm.ints("step")), _by_step(comm))
        known = (comm.ints("step") != NULL) & (match >= 0) & ~lossy
    elif lossy.any():
        key = numbered(group_of(comm), comm.ints("seq"))
        match = np.where(p2p, _channels(comm, p2p), key)
        known = (match >= 0) & ~lossy
    else:
        return comm
    # sends and collectives never belong together
    return comm.with_column("match", np.where(known, 2 * match + p2p, NULL))


def group_of(comm: Table) -> Ints:
    return comm.strings("group").codes.astype(np.int64)


def _numbered(comm: Table, p2p: Mask) -> bool:
    """Whether every collective has torch's sequence number, unique on its rank."""
    rows = comm.take(~p2p)
    if not len(rows) or (rows.ints("sequence") == NULL).any():
        return False
    keys = numbered(rows.ints("rank"), group_of(rows), rows.ints("sequence"))
    return int(keys.max()) + 1 == len(rows)


def _by_step(comm: Table) -> Ints:
    op = comm.strings("op")
    size = np.where(op.equals(*EQUAL_SIZES), comm.ints("bytes"), NULL)
    like = (group_of(comm), comm.ints("step"), op.codes.astype(np.int64), size)
    return numbered(*like, occurrence(numbered(comm.ints("rank"), *like), comm.ints("seq")))


def lossy(comm: Table, suspected: Mask) -> Mask:
    """Collectives of ranks that have fewer in their steps than other members of the group.

    A truncated file may lack all events of one thread. Which of the others' collectives such a rank
    has nobody knows: by their order they would be paired with other ones, a second apart.

    Args:
        suspected: rows of files that are known to be incomplete.
    """
    collective = ~comm.strings("op").equals("Send", "Recv")
    kept = np.flatnonzero(collective & (comm.ints("step") != NULL))
    if not kept.size:
        return np.zeros(len(comm), np.bool_)
    group = group_of(comm)
    member = numbered(group, comm.ints("rank"))
    _, first, counts = np.unique(
        numbered(member[kept], comm.ints("step")[kept]), return_index=True, return_counts=True
    )
    of = member[kept][first]
    usual = np.array([np.median(counts[of == one]) if (of == one).any() else 0.0
                      for one in range(int(member.max()) + 1)])  # fmt: skip
    most = np.zeros(int(group.max(initial=0)) + 1)
    np.maximum.at(most, np.maximum(group, 0), usual[member])
    fewer = (group >= 0) & (usual[member] < most[np.maximum(group, 0)])
    return np.asarray(suspected & collective & fewer)


def _channels(comm: Table, p2p: Mask, *more: Ints) -> Ints:
    """Matches the k-th send between two ranks with the k-th receive; -1 if a rank is unknown."""
    rank, peer = comm.ints("rank"), comm.ints("peer")
    sends = comm.strings("op").equals("Send")
    pair = (group_of(comm), np.where(sends, rank, peer), np.where(sends, peer, rank), *more)
    count = occurrence(numbered(sends.astype(np.int64), *pair), comm.ints("seq"))
    return np.where(p2p & (peer > UNKNOWN_PEER), numbered(*pair, count), -1)
