"""Adds to `comm_ops` how long each rank waited in an operator, and a number for each operator.

`waited_ns` is how long a member of a collective waited for the last arrival. All rows of one
operator share the same `operator` number, by which timelines connect them. The number does not
depend on what else is in the window, so that traces of parts of a job fit together.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from stepscope.diagnose.prepare.matching import SYNCHRONIZING, Matched, arrivals, match
from stepscope.window import NULL, Ints, Window

_SPREAD = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Odd 64-bit constants (Steele, Lea and Flood, Fast splittable pseudorandom number generators,
2014): products with them spread neighbouring numbers."""


def with_operator_waits(window: Window) -> Window:
    """The window with the columns `waited_ns` (null: unknown) and `operator` in `comm_ops`."""
    comm = window.table("comm_ops")
    if comm is None or not comm.has("group", "op", "seq", "enqueue_ns"):
        return window
    matched = match(comm)
    comm = comm.with_column("waited_ns", _waited(matched))
    comm = comm.with_column("operator", _operators(matched, window.job.job_id))
    return Window(window.job, {**window.tables, "comm_ops": comm})


def _waited(matched: Matched) -> Ints:
    """Last arrival less own arrival, in collectives that all ranks leave together."""
    table, order = matched.table, matched.order
    waited = np.full(len(table), NULL)
    if not order.size:
        return waited
    arrive = arrivals(table)[order]
    length = np.diff(matched.bounds)
    last = np.repeat(np.maximum.reduceat(arrive, matched.bounds[:-1]), length)
    shared = np.repeat(length, length) > 1
    known = shared & table.strings("op").equals(*SYNCHRONIZING)[order]
    waited[order[known]] = (last - arrive)[known]
    return waited


def _operators(matched: Matched, job_id: str) -> Ints:
    """The number of each row's operator, which is that of its row with the lowest rank."""
    own = _row_numbers(matched, job_id)
    if not matched.order.size:
        return own
    number = np.repeat(np.arange(matched.bounds.size - 1), np.diff(matched.bounds))
    rank = matched.table.ints("rank")[matched.order]
    order = matched.order[np.lexsort((rank, number))]
    shared = own.copy()
    shared[order] = np.repeat(own[order[matched.bounds[:-1]]], np.diff(matched.bounds))
    return shared


def _row_numbers(matched: Matched, job_id: str) -> Ints:
    table = matched.table
    group = table.strings("group")
    names = np.array([_hash(f"{job_id}/{name}") for name in (*group.values, "")], np.uint64)
    mixed = names[group.codes]
    parts = (table.ints("rank"), table.ints("seq"), matched.p2p.astype(np.int64))
    for part, spread in zip(parts, _SPREAD, strict=True):
        mixed ^= mixed >> np.uint64(31)
        mixed = (mixed + part.astype(np.uint64)) * np.uint64(spread)
    return (mixed ^ (mixed >> np.uint64(29))).astype(np.int64)


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")
