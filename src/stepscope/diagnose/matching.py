"""Which rows of `comm_ops` are one operator: members of a collective, the two ends of a P2P.

Members of a collective share (`group`, `seq`); a Send and its Recv share the group, the two ranks
and their order; where the column `match` is there it alone counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.trace import UNKNOWN_PEER
from stepscope.window import NULL, Ints, Mask, Table

POINT_TO_POINT = ("Send", "Recv")
TOGETHER = ("AllReduce", "AllGather", "ReduceScatter", "AllToAll", "Barrier")
"""Collectives that nobody can leave before all have arrived."""


@dataclass(frozen=True)
class Matched:
    """`key` numbers the operator each row belongs to, -1 where that is unknown."""

    table: Table
    key: Ints
    p2p: Mask

    @cached_property
    def order(self) -> Ints:
        """Rows sorted by key, unknown ones left out."""
        order = np.argsort(self.key, kind="stable")
        return order[np.searchsorted(self.key[order], 0) :]

    @cached_property
    def bounds(self) -> Ints:
        """Where in `order` each operator begins, and its length at the end."""
        keys = self.key[self.order]
        begins = np.flatnonzero(np.diff(keys, prepend=-1))
        return np.append(begins, keys.size)


def match(table: Table) -> Matched:
    """Numbers the operators of a table."""
    p2p = table.strings("op").equals(*POINT_TO_POINT)
    group = table.strings("group").codes.astype(np.int64)
    known = (group >= 0) & (table.ints("rank") >= 0)
    if table.has("match"):
        known &= table.ints("match") != NULL
        return Matched(table, _number(known, group, table.ints("match")), p2p)
    collective = _number(known & ~p2p & (table.ints("seq") != NULL), group, table.ints("seq"))
    if not p2p.any() or not table.has("peer"):
        return Matched(table, collective, p2p)
    pairs = _pairs(table, group, known & p2p & (table.ints("peer") > UNKNOWN_PEER))
    offset = int(collective.max(initial=-1)) + 1
    return Matched(table, np.where(pairs >= 0, pairs + offset, collective), p2p)


def _pairs(table: Table, group: Ints, known: Mask) -> Ints:
    """Numbers the point-to-point pairs: k-th Send of a direction with its k-th Recv."""
    rank, peer = table.ints("rank"), table.ints("peer")
    sends = table.strings("op").equals("Send")
    source, target = np.where(sends, rank, peer), np.where(sends, peer, rank)
    channel = _number(known, group, source, target, sends.astype(np.int64))
    return _number(known, group, source, target, _occurrence(channel, table.ints("seq")))


def _occurrence(channel: Ints, seq: Ints) -> Ints:
    """The how-manieth row of its channel each row is, in order of `seq`."""
    order = np.lexsort((seq, channel))
    begins = np.flatnonzero(np.diff(channel[order], prepend=-2))
    lengths = np.diff(np.append(begins, channel.size))
    place = np.empty(channel.size, np.int64)
    place[order] = np.arange(channel.size) - np.repeat(begins, lengths)
    return place


def _number(known: Mask, *columns: Ints) -> Ints:
    """Numbers the distinct combinations of the columns, -1 where `known` is false."""
    numbers = np.full(known.shape, -1, np.int64)
    if not known.any():
        return numbers
    chosen = [column[known] for column in columns]
    order = np.lexsort(chosen[::-1])
    changed = np.zeros(order.size, np.bool_)
    for column in chosen:
        changed[1:] |= np.diff(column[order]) != 0
    dense = np.empty(order.size, np.int64)
    dense[order] = np.cumsum(changed)
    numbers[known] = dense
    return numbers


def arrivals(comm: Table) -> Ints:
    """When each operator was there: the head of its stream where known, else the host call."""
    enqueue = comm.ints("enqueue_ns")
    if not comm.has("start_ns"):
        return enqueue
    start = comm.ints("start_ns")
    return np.where(start == NULL, enqueue, start)
