"""Communication operators of one rank as tracks: one per group, and one for its point-to-point.

An operator lasts from reaching the head of its stream (or from the host's call, if only that is
known) to its end. One without an end is drawn to the end of the recording if it may be in progress,
and with zero length if it has ended: a later one of its group ended, or the recorder says so.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.perfetto.slices import Slices, Track
from stepscope.trace import NO_PEER
from stepscope.window import NULL, Ints, Mask, Strings, Table

MOST_OPEN = 16
"""Most open operators drawn per track: more would only repeat the same."""
_DETAILS = ("step", "seq", "bytes", "enqueue_ns", "waited_ns", "blocked_ns")
_POINT_TO_POINT = ("Send", "Recv")
UNKNOWN_GROUP = "unknown group"
STATES = ("", " (end unknown)", " (never ended)", " (never started)")
ENDED, END_UNKNOWN, NEVER_ENDED, NEVER_STARTED = range(4)
"""States of an operator's end, and what names of its slices end with."""


def communication(rows: Table, until_ns: int) -> Iterator[Track]:
    """The tracks of one rank's `comm_ops`."""
    p2p = rows.strings("op").equals(*_POINT_TO_POINT)
    group = rows.strings("group")
    key = group.codes.astype(np.int64) * 2 + p2p
    for one in np.unique(key).tolist():
        code, is_p2p = divmod(one, 2)
        what = "point-to-point" if is_p2p else "collectives"
        name = group.values[code] if code >= 0 else UNKNOWN_GROUP
        yield Track(f"{what} {name}", _slices(rows.take(key == one), bool(is_p2p), until_ns))


def _slices(rows: Table, p2p: bool, until_ns: int) -> Slices:
    enqueue = rows.ints("enqueue_ns")
    rows = rows.take(np.lexsort((enqueue, rows.ints("seq"))))
    enqueue = rows.ints("enqueue_ns")
    start = rows.ints("start_ns") if rows.has("start_ns") else np.full(len(rows), NULL)
    begin = np.where(start == NULL, enqueue, start)
    end = rows.ints("end_ns") if rows.has("end_ns") else np.full(len(rows), NULL)
    state = _states(rows, start, end, p2p)
    open_ = state >= NEVER_ENDED
    drawn = open_ & (np.cumsum(open_) <= MOST_OPEN)
    end = np.where(drawn, np.maximum(until_ns, begin), np.where(end == NULL, begin, end))
    columns: dict[str, Ints | Strings] = {name: rows.strings(name) for name in ("op", "group")}
    columns |= {name: rows.ints(name) for name in _DETAILS if rows.has(name)}
    flow = rows.ints("operator") if rows.has("operator") else None
    return Slices(begin, end, _names(rows, state, p2p), columns, flow)


def _states(rows: Table, start: Ints, end: Ints, p2p: bool) -> Ints:
    """The state of each operator's end."""
    if not rows.has("end_ns"):
        return np.where(_under_way(rows), NEVER_ENDED, ENDED)
    open_ = (end == NULL) & ~_over(rows, end, p2p)
    state = np.where(end == NULL, END_UNKNOWN, ENDED)
    known_start = rows.has("start_ns") & (start == NULL)
    return np.where(open_, np.where(known_start, NEVER_STARTED, NEVER_ENDED), state)


def _under_way(rows: Table) -> Mask:
    """Operators in progress by the column `state`, for recorders without end times; else none."""
    if not rows.has("state"):
        return np.zeros(len(rows), np.bool_)
    return rows.strings("state").equals("started", "scheduled")


def _over(rows: Table, end: Ints, p2p: bool) -> Mask:
    """Rows, in order, that have ended: collectives of a group end in order."""
    done: Mask = np.zeros(len(rows), np.bool_)
    if rows.has("state"):
        done = rows.strings("state").equals("done")
    ended = np.flatnonzero((end != NULL) | done)
    if not p2p and ended.size:
        done[: ended[-1]] = True
    return done


def _names(rows: Table, state: Ints, p2p: bool) -> Strings:
    """Names like `AllReduce (never ended)` and `Send to 5`."""
    op = rows.strings("op")
    peer = rows.ints("peer") if p2p and rows.has("peer") else np.full(len(rows), NO_PEER)
    kinds = np.stack((op.codes.astype(np.int64), peer, state), axis=1)
    used, codes = np.unique(kinds, axis=0, return_inverse=True)
    values = tuple(_name(op.values[code] if code >= 0 else "operator", peer, state)
                   for code, peer, state in used.tolist())  # fmt: skip
    return Strings(codes.reshape(-1).astype(np.int32), values)


def _name(op: str, peer: int, state: int) -> str:
    towards = f" {'to' if op == 'Send' else 'from'} {peer}" if peer >= 0 else ""
    return f"{op}{towards}{STATES[state]}"
