"""Each communication operator once.

An operator in flight lies in its host's `open.parquet`; when it finishes it moves to a growing
file, and for a moment, or after a crash, both hold it. The row that knows more is kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.trace import COLLECTIVES, NO_PEER, UNKNOWN_PEER
from stepscope.window import NULL, Column, Ints, Mask, Strings, Table

Rows = NDArray[np.intp]

_SAME_CALL_NS = 1_000_000_000
"""Rows of one operator were enqueued at one moment, give or take what re-aligning a clock moves.
A training job that restarts counts its operators from 0 again, but needs longer than this."""

_ROWS_AT_ONCE = 1 << 17
"""What is needed in between stays in the cache: pages for all rows cost more than the numbers."""

_KEY = ("rank", "group", "seq", "op", "peer", "match")


def with_peers(table: Table) -> Table:
    """A collective has no peer, also where nobody said so."""
    peers, collective = table.ints("peer"), table.strings("op").equals(*COLLECTIVES)
    nameless = collective & (peers == UNKNOWN_PEER)
    if not nameless.any():
        return table
    return table.with_column("peer", np.where(nameless, NO_PEER, peers))


def one_row_each(table: Table) -> Table:
    """Drops the rows of operators that another row tells more about."""
    suspects = _suspects(table)
    if not len(suspects):
        return table
    keep = np.ones(len(table), dtype=np.bool_)
    keep[suspects] = _tells_most(table.take(suspects))
    return table.take(keep)


def _suspects(table: Table) -> Rows:
    """Rows that share a hash of their key with another row: almost always none, and quick."""
    mixed = _hashes(table)
    ordered = np.sort(mixed)
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not len(repeated):
        return np.empty(0, dtype=np.intp)
    at = np.minimum(np.searchsorted(repeated, mixed), len(repeated) - 1)
    # without its place in the order there is no telling one operator from the next
    numbered = table.ints("seq") != NULL
    return np.flatnonzero((repeated[at] == mixed) & numbered)


def _hashes(table: Table) -> NDArray[np.uint64]:
    """A number that rows of equal keys share."""
    keys = [_values(table.columns[name]) for name in _KEY if table.has(name)]
    hashes = np.zeros(len(table), np.uint64)
    for begin in range(0, len(table), _ROWS_AT_ONCE):
        mixed = hashes[begin : begin + _ROWS_AT_ONCE]
        for key in keys:
            mixed ^= key[begin : begin + _ROWS_AT_ONCE].astype(np.uint64)
            mixed *= np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
    return hashes


def _tells_most(table: Table) -> Mask:
    """One row of each operator: a finished one before a started one before a waiting one."""
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
    """When an operator was enqueued, or whatever else is known of its time."""
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
