"""Communication operators from their tracks: the reverse of `stepscope.perfetto.communication`.

Lossy: of an operator that had ended at an unknown time because a later one of its group ended, the
state is `done`, whether that was recorded or not; and whether an operator was `scheduled` or
`started` is not known any more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from stepscope.formats.perfetto.columns import by_name, same, table, together
from stepscope.perfetto.communication import (
    END_UNKNOWN,
    ENDED,
    NEVER_ENDED,
    NEVER_STARTED,
    STATES,
    UNKNOWN_GROUP,
)
from stepscope.trace import NO_PEER, UNKNOWN_PEER
from stepscope.window import NULL, Column, Ints, Mask, Strings, Table

TRACK = re.compile(r"(?P<kind>collectives|point-to-point) (?P<group>.*)", re.DOTALL)
_TO = re.compile(r" (?:to|from) (\d{1,9})$")
_DETAILS = ("step", "seq", "bytes", "enqueue_ns", "blocked_ns")
_STATE = "state of its end"


def operators(rank: int, track: str, rows: Table) -> Table:
    """The operators of a track, with begin and end as drawn, and the state of the end."""
    named = TRACK.fullmatch(track)
    assert named is not None
    p2p = named["kind"] == "point-to-point"
    name = rows.strings("name")
    group = named["group"]
    columns: dict[str, Column] = {
        "group": rows.strings("group") if rows.has("group") else same(
            None if group == UNKNOWN_GROUP else group, len(rows)),
        "op": rows.strings("op") if rows.has("op") else name,
        "peer": by_name(name, lambda one: _peer(one, p2p), NO_PEER),
        "start_ns": rows.ints("begin_ns"),
        "end_ns": rows.ints("end_ns"),
        _STATE: by_name(name, _state, ENDED),
    }  # fmt: skip
    found = table(rank, rows, columns, *_DETAILS)
    if found.has("enqueue_ns"):
        return found
    return found.with_column("enqueue_ns", np.full(len(rows), NULL))


def _state(name: str) -> int:
    return next((state for state in (END_UNKNOWN, NEVER_ENDED, NEVER_STARTED)
                 if name.endswith(STATES[state])), ENDED)  # fmt: skip


def _peer(name: str, p2p: bool) -> int:
    if not p2p:
        return NO_PEER
    named = _TO.search(name.removesuffix(STATES[_state(name)]))
    return int(named[1]) if named else UNKNOWN_PEER


def comm_ops(parts: Sequence[Table]) -> Table:
    """All operators; their times are null or left out where they were not recorded."""
    rows = together(parts)
    state, begin, end = (rows.ints(name) for name in (_STATE, "start_ns", "end_ns"))
    columns = {name: column for name, column in rows.columns.items() if name != _STATE}
    called = rows.ints("enqueue_ns") == begin
    timed = _are_timed(state, begin, end)
    if not timed:
        del columns["end_ns"]
    else:
        columns["end_ns"] = np.where(state == ENDED, end, NULL)
    if not timed or (called.all() and not (state == NEVER_STARTED).any()):
        del columns["start_ns"]
    else:
        columns["start_ns"] = np.where(state == NEVER_STARTED, NULL, begin)
    if not timed or (state != ENDED).any():
        columns["state"] = Strings((state >= NEVER_ENDED).astype(np.int32), ("done", "started"))
    return Table(columns)


def _are_timed(state: Ints, begin: Ints, end: Ints) -> bool:
    """Whether the ends of operators were recorded: some operator is longer than a mark, or is
    marked as without an end. Dumps of the Flight Recorder have none."""
    over: Mask = state == ENDED
    lasted = over & (end > begin)
    without = (state == END_UNKNOWN) | (state == NEVER_STARTED)
    return not over.any() or bool((lasted | without).any())
