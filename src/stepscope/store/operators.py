"""Removes duplicate rows of communication operators.

An outstanding operator is in its host's `open.parquet`. When it finishes it moves to a growing
file, and for a moment, or after a crash, it is in both. The more complete row is kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.store.order import by_rank
from stepscope.trace import COLLECTIVES, NO_PEER, UNKNOWN_PEER
from stepscope.window import NULL, Column, Ints, Mask, Strings, Table, stable_order

Rows = NDArray[np.intp]

_SAME_CALL_NS = 1_000_000_000
"""Rows of one operator have the same enqueue time up to clock adjustments. A training job that
restarts numbers its operators from 0 again, but needs longer than this."""

_KEY = ("rank", "group", "seq", "op", "peer", "match")


def with_peers(table: Table) -> Table:
    """Sets the peer of collectives with an unknown peer to `NO_PEER`."""
    nameless = table.numbers("peer") == UNKNOWN_PEER
    if nameless.any():
        nameless &= table.strings("op").equals(*COLLECTIVES)
    if not nameless.any():
        return table
    return table.with_column("peer", np.where(nameless, NO_PEER, table.ints("peer")))


def one_row_each(table: Table) -> Table:
    """Keeps the most complete row of each operator."""
    suspects = _suspects(table)
    if not len(suspects):
        return table
    keep = np.ones(len(table), dtype=np.bool_)
    keep[suspects] = _most_complete(table.take(suspects))
    return table.take(keep)


def _suspects(table: Table) -> Rows:
    """Rows whose key another row seems to have: almost always none."""
    found = [part.start + _repeated(table.part(part.start, part.stop))
             for part in by_rank(table.numbers("rank"))]  # fmt: skip
    return np.concatenate([np.empty(0, np.intp), *found])


def _repeated(table: Table) -> Rows:
    """Rows with the same key hash as another row."""
    if _is_numbered_in_order(table):
        return np.empty(0, np.intp)
    mixed = _hashes(table)
    ordered = np.sort(mixed)
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not len(repeated):
        return np.empty(0, dtype=np.intp)
    at = np.minimum(np.searchsorted(repeated, mixed), len(repeated) - 1)
    # without a sequence number, operators cannot be distinguished
    numbered = table.ints("seq") != NULL
    return np.flatnonzero((repeated[at] == mixed) & numbered)


def _is_numbered_in_order(table: Table) -> bool:
    """Whether each rank's operators in a group have rising numbers: then none is there twice, as is
    seen in a quarter of the time that hashes take."""
    group, rank, seq = table.strings("group"), table.ints("rank"), table.ints("seq")
    place = (rank - rank.min()) * (len(group.values) + 1) + (group.codes + 1)
    order = stable_order(place)
    place, seq = place[order], seq[order]
    return bool(((place[1:] > place[:-1]) | (seq[1:] > seq[:-1])).all())


def _hashes(table: Table) -> NDArray[np.uint64]:
    """A hash of each row's key."""
    hashes = np.zeros(len(table), np.uint64)
    for name in _KEY:
        if table.has(name):
            hashes ^= _values(table.columns[name]).astype(np.uint64)
            hashes *= np.uint64(0x9E3779B97F4A7C15)
            hashes ^= hashes >> np.uint64(29)
    return hashes


def _most_complete(table: Table) -> Mask:
    """Selects one row per operator: finished is preferred to started, started to waiting."""
    operator, known = _operator_of(table), _knowledge(table)
    order = np.lexsort((known, operator))
    last = np.append(np.flatnonzero(np.diff(operator[order])), len(order) - 1)
    keep = np.zeros(len(table), dtype=np.bool_)
    keep[order[last]] = True
    return keep


def _operator_of(table: Table) -> Ints:
    """Numbers the operators: rows of one key that were enqueued at about the same time."""
    keys, moments = _keys(table), _moments(table)
    order = np.lexsort((moments, *keys))
    starts = np.diff(moments[order], prepend=moments[order[:1]]) >= _SAME_CALL_NS
    for key in keys:
        starts |= np.diff(key[order], prepend=key[order[:1]]) != 0
    operator = np.empty(len(table), dtype=np.int64)
    operator[order] = np.cumsum(starts)
    return operator


def _keys(table: Table) -> list[Ints]:
    return [_values(table.columns[name]).astype(np.int64) for name in _KEY if table.has(name)]


def _values(column: Column) -> NDArray[Any]:
    return column.codes if isinstance(column, Strings) else column


def _moments(table: Table) -> Ints:
    """When an operator was enqueued, or another known time of it."""
    moments = table.ints("enqueue_ns")
    for name in ("start_ns", "end_ns"):
        if table.has(name):
            moments = np.where(moments == NULL, table.ints(name), moments)
    return moments


def _knowledge(table: Table) -> Ints:
    """2: it finished, 1: it started, 0: it waits."""
    known = np.zeros(len(table), dtype=np.int64)
    for column, state, value in (("start_ns", "started", 1), ("end_ns", "done", 2)):
        if table.has("state"):
            known[table.strings("state").equals(state)] = value
        if table.has(column):
            known[table.ints(column) != NULL] = value
    return known
