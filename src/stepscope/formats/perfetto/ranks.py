"""The tables of one rank or host from its tracks, except for communication operators."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from stepscope.formats.perfetto.columns import by_name, durations, same, table
from stepscope.formats.perfetto.communication import TRACK, operators
from stepscope.formats.perfetto.stacks import flattened
from stepscope.formats.perfetto.tracks import Owner, Track
from stepscope.perfetto.packets import STEP
from stepscope.perfetto.tracks import (
    COUNTERS,
    OF_THREAD,
    OPERATORS,
    PAUSES,
    PHASE_DETAILS,
    PHASES,
    STACK_OF,
    STEPS,
    STREAM,
    UNKNOWN_STREAM,
    UNKNOWN_THREAD,
)
from stepscope.window import NULL, Column, Ints, Table

_NUMBER = re.compile(r"-?\d{1,18}")
_NO_THREAD = -1
Named = tuple[str, Table]
"""A table's name, and some rows of it."""


def tables_of(owner: Owner, tracks: Sequence[Track]) -> list[Named]:
    """The rows of all tables in the tracks of a rank or host."""
    found = [("hardware", _counter(track)) for track in tracks if track.parent == COUNTERS]
    if owner.rank == Owner.HOST:
        return found
    own = [track for track in tracks if not track.parent]
    steps = next((_steps(track) for track in own if track.name == STEPS), None)
    if steps is not None:
        found.append(("steps", steps))
    return found + [one for track in own for one in _rows_of(track, steps)]


def _rows_of(track: Track, steps: Table | None) -> Iterator[Named]:
    """The table of a track; none for one that is not read."""
    name, rows, rank = track.name, track.rows, track.owner.rank
    stream, thread = _number(name, STREAM), _number(name, OPERATORS + OF_THREAD)
    if name == PHASES:
        columns: dict[str, Column] = {"phase": rows.strings("name"), **durations(rows)}
        yield "phases", table(rank, rows, columns, *PHASE_DETAILS)
    elif name == PAUSES:
        columns = {"kind": rows.strings("name"), **durations(rows)}
        yield "pauses", table(rank, rows, columns, "step")
    elif TRACK.fullmatch(name):
        yield "comm_ops", operators(rank, name, rows)
    elif name == UNKNOWN_STREAM or stream is not None:
        yield "kernels", _kernels(track, stream, steps)
    elif name == OPERATORS or thread is not None:
        yield "host_ops", _host_operators(track, _NO_THREAD if thread is None else thread)
    elif name.startswith(STACK_OF):
        named = name.removeprefix(STACK_OF)
        yield "stacks", flattened(rank, None if named == UNKNOWN_THREAD else named, rows)


def _number(name: str, begin: str) -> int | None:
    """The number that a name ends with after this beginning."""
    if not name.startswith(begin) or not _NUMBER.fullmatch(name, len(begin)):
        return None
    return int(name.removeprefix(begin))


def _steps(track: Track) -> Table:
    rows = track.rows
    number = by_name(rows.strings("name"), lambda name: _or_null(_number(name, STEP)))
    return table(track.owner.rank, rows, {"step": number, **durations(rows)}, "host_ns")


def _or_null(value: int | None) -> int:
    return NULL if value is None else value


def _kernels(track: Track, stream: int | None, steps: Table | None) -> Table:
    rows = track.rows
    begin = rows.ints("begin_ns")
    columns: dict[str, Column] = {
        "kernel": rows.strings("name"),
        "stream": np.full(len(rows), _or_null(stream)),
        **durations(rows),
    }
    launched = begin
    if rows.has("queued_ns"):
        queued = rows.ints("queued_ns")
        known = (queued >= 0) & (queued <= begin)
        launched = np.where(known, begin - np.where(known, queued, 0), begin)
        columns["enqueue_ns"] = np.where(known, launched, NULL)
    columns["step"] = _step_at(steps, launched)
    return table(track.owner.rank, rows, columns)


def _step_at(steps: Table | None, time_ns: Ints) -> Ints:
    """The step of each time: the last one that has begun, null before the first and after the last
    step of the rank."""
    if steps is None:
        return np.full(len(time_ns), NULL)
    begin = steps.ints("start_ns")
    last_ns = int((begin + steps.ints("duration_ns")).max())
    row = np.searchsorted(begin, time_ns, side="right") - 1
    inside = (row >= 0) & (time_ns < last_ns)
    return np.where(inside, steps.ints("step")[np.maximum(row, 0)], NULL)


def _host_operators(track: Track, thread: int) -> Table:
    rows = track.rows
    columns: dict[str, Column] = {
        "name": rows.strings("name"),
        "thread": np.full(len(rows), thread),
        **durations(rows),
    }
    return table(track.owner.rank, rows, columns, "step")


def _counter(track: Track) -> Table:
    rows, owner = track.rows, track.owner
    columns: dict[str, Column] = {
        "host": same(owner.host, len(rows)),
        "metric": same(track.name, len(rows)),
        "ts_ns": rows.ints("begin_ns"),
        "value": rows.floats("value"),
    }
    return table(owner.rank, rows, columns)
