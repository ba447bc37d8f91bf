"""Matches rows of `comm_ops` that are one operator: a collective, or a send with its receive.

Members of a collective share (`group`, `seq`); a Send and its Recv share the group, the two ranks
and their order. If there is a column `match`, only that counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.trace import UNKNOWN_PEER
from stepscope.window import NULL, Ints, Mask, Rows, Table, Window, numbered, ordered, stable_order

POINT_TO_POINT = ("Send", "Recv")
REDUCTIONS = ("AllReduce", "ReduceScatter")
"""Sums of gradients, which devices compute beside."""
SYNCHRONIZING = ("AllReduce", "AllGather", "ReduceScatter", "AllToAll", "Barrier")
"""Collectives that no rank can leave before all ranks have arrived."""


@dataclass(frozen=True)
class Matched:
    """The rows of `comm_ops`, and in `key` the number of each row's operator; -1 if unknown."""

    table: Table
    key: Ints
    p2p: Mask

    @cached_property
    def order(self) -> Ints:
        """Rows sorted by key, without unknown ones."""
        return stable_order(self.key + 1)[int((self.key < 0).sum()) :]

    @cached_property
    def bounds(self) -> Ints:
        """The index in `order` at which each operator begins, and the number of rows at the end."""
        lengths = np.bincount(self.key + 1)[1:]
        return np.concatenate(([0], np.cumsum(lengths)))


def match(table: Table) -> Matched:
    """Numbers the operators of the table `comm_ops`."""
    p2p = table.strings("op").equals(*POINT_TO_POINT)
    group = table.strings("group").codes.astype(np.int64)
    known = (group >= 0) & (table.ints("rank") >= 0)
    if table.has("match"):
        given = table.ints("match")
        return Matched(table, _numbered(known & (given != NULL), group, given), p2p)
    seq = table.ints("seq")
    collective = _numbered(known & ~p2p & (seq != NULL), group, seq)
    if not p2p.any() or not table.has("peer"):
        return Matched(table, collective, p2p)
    pairs = _pairs(table)
    offset = int(collective.max(initial=-1)) + 1
    return Matched(table, np.where(pairs >= 0, pairs + offset, collective), p2p)


def match_among(table: Table, some: Mask) -> Matched:
    """The same of some rows, of which each meets what it meets among all: without the first send of
    a direction all its other sends would meet the receives before theirs."""
    matched = match(table)
    key = _numbered(matched.key[some] >= 0, matched.key[some])
    return Matched(table.take(some), key, matched.p2p[some])


def directions(table: Table) -> tuple[Mask, Mask, Ints]:
    """Which rows are sends and receives whose peers are known; and of these which are receives, and
    a number for the group, source and target of each."""
    group = table.strings("group").codes.astype(np.int64)
    known = table.strings("op").equals(*POINT_TO_POINT) & (group >= 0)
    known &= (table.ints("rank") >= 0) & (table.ints("peer") > UNKNOWN_PEER)
    rank, peer = (table.ints(name)[known] for name in ("rank", "peer"))
    received = table.strings("op").equals("Recv")[known]
    source, target = np.where(received, peer, rank), np.where(received, rank, peer)
    return known, received, numbered(group[known], source, target)


def _pairs(table: Table) -> Ints:
    """Numbers the point-to-point pairs: the k-th Send of a direction with its k-th Recv."""
    sent = Sent.of(table)
    most = sent.counts.max(axis=1)
    first = np.repeat(np.cumsum(most) - most, 2) - sent.begins.ravel()
    pairs = np.full(len(table), -1, np.int64)
    pairs[sent.rows] = np.repeat(first, sent.counts.ravel()) + np.arange(sent.rows.size)
    return pairs


@dataclass(frozen=True)
class Sent:
    """Sends and receives, ordered by group, source and target; of each such direction the sends
    come first, and both are in the order of their calls."""

    rows: Rows
    counts: Ints
    """`[direction, 2]`: the number of sends, and of receives."""

    @classmethod
    def of(cls, table: Table) -> Sent:
        """The sends and receives of `comm_ops` whose peers are known."""
        known, received, direction = directions(table)
        seq, end = table.ints("seq")[known], 2 * direction + received
        counts = np.bincount(end, minlength=2 * (int(end.max(initial=-1)) // 2 + 1))
        return cls(np.flatnonzero(known)[ordered(end, seq)], counts.reshape(-1, 2))

    @cached_property
    def begins(self) -> Ints:
        """`[direction, 2]`: where sends and receives begin in `rows`."""
        return (np.cumsum(self.counts) - self.counts.ravel()).reshape(-1, 2)

    @cached_property
    def pairs(self) -> Ints:
        """`[direction]`: the number of sends that have a receive."""
        return np.asarray(self.counts.min(axis=1))

    @cached_property
    def matched(self) -> tuple[Rows, Rows]:
        """The sends that have a receive, and their receives."""
        nth = np.arange(int(self.pairs.sum())) - np.repeat(
            np.cumsum(self.pairs) - self.pairs, self.pairs
        )
        send, receive = (self.rows[np.repeat(begin, self.pairs) + nth] for begin in self.begins.T)
        return send, receive

    def holds_for(self, seq: Ints) -> bool:
        """Whether rows of the same ranks and peers, but with these numbers, have this order."""
        seq = seq[self.rows]
        rises = seq[1:] > seq[:-1]
        begins = self.begins[(self.begins > 0) & (self.begins < seq.size)]
        rises[begins - 1] = True
        return bool(rises.all())


def _numbered(known: Mask, *columns: Ints) -> Ints:
    """Numbers the distinct combinations of the columns; -1 if not `known`."""
    numbers = np.full(known.shape, -1, np.int64)
    numbers[known] = numbered(*(column[known] for column in columns))
    return numbers


def kinds_and_operators(window: Window, comm: Table) -> Ints:
    """A number for the operator of each row, the same in all groups of a kind."""
    kinds = {group.id: group.kind for group in window.job.groups}
    names = [kinds.get(name, name) for name in comm.strings("group").values]
    code = np.append(np.unique(np.array(names, np.str_), return_inverse=True)[1], -1)
    return numbered(code[comm.strings("group").codes], comm.strings("op").codes.astype(np.int64))


def arrivals(comm: Table) -> Ints:
    """When each rank arrived at the operator: at the head of its stream, else at the host call."""
    enqueue = comm.ints("enqueue_ns")
    if not comm.has("start_ns"):
        return enqueue
    start = comm.ints("start_ns")
    return np.where(start == NULL, enqueue, start)
