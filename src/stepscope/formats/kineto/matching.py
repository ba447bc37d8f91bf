"""Numbers the collectives of a job so that members match although events were dropped.

Counting calls from the beginning of a trace fails for good after the first event that a profiler
lost, or if one profiler began earlier. Torch's own sequence number does not have this problem: it
decides wherever it was recorded. Other operators are counted within each annotated step, separately
by operator and size (where members must have equal sizes): a lost event affects only such operators
in its step. What was launched before the recording is counted nowhere.
"""

from __future__ import annotations

import numpy as np

from stepscope.formats.kineto.calls import P2P
from stepscope.trace import UNKNOWN_PEER
from stepscope.window import NULL, Ints, Mask, Table, numbered, occurrence

EQUAL_SIZES = ("AllReduce", "Broadcast", "Reduce")


def matched(comm: Table, annotated: bool, lossy: Mask) -> Table:
    """Adds a column `match`, unless only the order is available.

    Args:
        annotated: whether steps are marked.
        lossy: rows of ranks of which others were lost (`lossy`): their order says nothing.
    """
    p2p = comm.strings("op").equals(*P2P)
    sure, earlier = _numbered(comm, p2p), comm.ints("counted_ns") == NULL
    if not (sure.any() or annotated or lossy.any() or earlier.any()):
        return comm
    if annotated:
        count, known = _by_step(comm), comm.ints("step") != NULL
        pairs = _channels(comm, p2p, comm.ints("step"))
    else:
        count, known = _by_order(comm, p2p, earlier), ~earlier
        pairs = _channels(comm, p2p, earlier.astype(np.int64))
    known &= ~lossy & np.where(p2p, pairs >= 0, ~_of_numbered(comm, sure))
    key = np.where(sure, comm.ints("sequence"), np.where(p2p, pairs, count))
    # sends and collectives never belong together, nor do counts and torch's numbers
    match = 2 * numbered(sure.astype(np.int64), group_of(comm), key) + p2p
    return comm.with_column("match", np.where(known | sure, match, NULL))


def group_of(comm: Table) -> Ints:
    return comm.strings("group").codes.astype(np.int64)


def _numbered(comm: Table, p2p: Mask) -> Mask:
    """The collectives that have torch's sequence number, in groups in which it is unique on each
    rank: one call may launch several kernels."""
    known = ~p2p & (comm.ints("sequence") != NULL)
    group = group_of(comm)
    key = numbered(comm.ints("rank"), group, comm.ints("sequence"))
    _, count = np.unique(key[known], return_counts=True)
    repeated = np.zeros(int(key.max(initial=-1)) + 1, np.bool_)
    repeated[np.unique(key[known])[count > 1]] = True
    return np.asarray(known & ~np.isin(group, group[known & repeated[key]]))


def _of_numbered(comm: Table, sure: Mask) -> Mask:
    """The operators of groups in which members are paired by number, as far as these have one: the
    number of the others was lost."""
    kind = numbered(group_of(comm), comm.strings("op").codes.astype(np.int64))
    return np.isin(kind, kind[sure])


def _by_order(comm: Table, p2p: Mask, earlier: Mask) -> Ints:
    """Counts the operators of each group, from the first that was launched in the recording."""
    lane = (comm.ints("rank"), group_of(comm), p2p.astype(np.int64), earlier.astype(np.int64))
    return occurrence(numbered(*lane), comm.ints("seq"))


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
