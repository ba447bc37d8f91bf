"""Decodes runs of packets of equal layout at once, as columns.

The first packet of a run shows where the holes are. All other bytes are equal in the whole run, and
so are the lengths of the numbers in the holes, which is checked; a run ends before the first packet
that differs. Cost: two passes over the bytes, and one over each byte of a hole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.errors import FormatError
from stepscope.formats.perfetto.layout import INT_TAG, NULL_FIELD, Hole, Layout, layout_of
from stepscope.formats.perfetto.packets import Packet, bounds_at, packet_at
from stepscope.perfetto import fields
from stepscope.window import NULL, Floats, Ints, Mask

_FIRST_ROWS, _GROWTH = 64, 8
"""Rows compared first, and how many times as many next: most runs are short or very long."""
_CONTINUES = 0x80
"""The bit of a varint's byte that says whether another one follows."""
_PAYLOAD = 0x7F
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Row:
    """One row of a run: the packet that begins it and, for a slice, the packet of its end."""

    begin: Layout
    end_time: Hole | None
    size: int


@dataclass(frozen=True)
class Run:
    """Rows of one track as columns; names and texts are numbers of interned strings.

    `numbers` and `texts` are by the number of their label.
    """

    sequence: int
    track: int
    is_counter: bool
    begin_ns: Ints
    end_ns: Ints
    names: Ints | None
    numbers: Mapping[int, Ints]
    texts: Mapping[int, Ints]
    value: Floats | None
    stop: int
    """Where the bytes of the run end."""


def row_of(data: bytes, packet: Packet) -> Row | None:
    """The row that begins with an event; None if the end of its slice is not in the data yet.

    Raises:
        FormatError: it is no event that stepscope writes, or a slice without an end.
    """
    begin = _layout(data, packet)
    if begin.kind in (fields.INSTANT, fields.COUNTER):
        return Row(begin, None, begin.size)
    if begin.kind != fields.BEGIN:
        raise FormatError("the end of a slice without its begin")
    bounds = bounds_at(data, packet.stop)
    if bounds is None:
        return None
    end = _layout(data, packet_at(data, packet.stop, *bounds))
    if end.kind != fields.END or end.track != begin.track or end.time is None:
        raise FormatError("a slice without its end")
    end_time = Hole(begin.size + end.time.at, end.time.width)
    return Row(begin, end_time, begin.size + end.size)


def _layout(data: bytes, packet: Packet) -> Layout:
    if packet.event is None or packet.time is None:
        raise FormatError("a packet without an event or time")
    layout = layout_of(data, packet.start, packet.event, packet.stop - packet.start)
    layout.sequence = packet.sequence
    layout.time = Hole(packet.time.at - packet.start, packet.time.stop - packet.time.at)
    return layout


def run_at(data: bytes, start: int, row: Row) -> Run:
    """The run that begins at `start` with a row like this."""
    rows = _equal_rows(data, start, row)
    layout = row.begin
    assert layout.time is not None
    begin = _numbers(rows, layout.time)
    return Run(
        layout.sequence,
        layout.track,
        layout.kind == fields.COUNTER,
        begin,
        begin if row.end_time is None else _numbers(rows, row.end_time),
        None if layout.name is None else _numbers(rows, layout.name),
        {one.label: _nullable(rows, one.hole) if one.is_nullable else _numbers(rows, one.hole)
         for one in layout.details if not one.is_text},
        {one.label: _numbers(rows, one.hole) for one in layout.details if one.is_text},
        None if layout.value is None else _eight(rows, layout.value).view(np.float64),
        start + rows.size,
    )  # fmt: skip


def _equal_rows(data: bytes, start: int, row: Row) -> Bytes:
    """The rows from `start` on that are equal but for their holes, as `[row, byte]`."""
    most = (len(data) - start) // row.size
    fixed = _fixed(row)
    first, wanted = 0, min(_FIRST_ROWS, most)
    every = np.frombuffer(data, np.uint8, most * row.size, start).reshape(most, row.size)
    while first < wanted:
        differs = _differs(every[first:wanted], every[0], fixed, row.begin.nullables())
        if differs.any():
            return every[: max(first + int(np.argmax(differs)), 1)]
        first, wanted = wanted, min(wanted * _GROWTH, most)
    return every[:first]


def _fixed(row: Row) -> Bytes:
    """The bits that are equal in all rows, by the byte."""
    fixed = np.full(row.size, 0xFF, np.uint8)
    for hole in row.begin.varints() + ([] if row.end_time is None else [row.end_time]):
        fixed[hole.at : hole.at + hole.width] = _CONTINUES
    for hole in row.begin.nullables() + row.begin.eights():
        fixed[hole.at : hole.at + hole.width] = 0
    return fixed


def _differs(rows: Bytes, first: Bytes, fixed: Bytes, nullables: Sequence[Hole]) -> Mask:
    """Which rows differ from the first one outside of their holes."""
    differs = np.asarray(((rows ^ first) & fixed).any(axis=1))
    for hole in nullables:
        differs |= ~(_is_null(rows, hole) | _is_number(rows, hole))
    return differs


def _is_null(rows: Bytes, hole: Hole) -> Mask:
    null = np.frombuffer(NULL_FIELD, np.uint8)
    same: Mask = (rows[:, hole.at : hole.at + hole.width] == null).all(axis=1)
    return same


def _is_number(rows: Bytes, hole: Hole) -> Mask:
    """Which nullable values are a tag and a varint of all other bytes."""
    value = rows[:, hole.at + len(INT_TAG) : hole.at + hole.width] >= _CONTINUES
    known: Mask = (rows[:, hole.at] == INT_TAG[0]) & value[:, :-1].all(axis=1) & ~value[:, -1]
    return known


def _numbers(rows: Bytes, hole: Hole) -> Ints:
    """The varints in a hole, as int64."""
    found = np.zeros(len(rows), np.uint64)
    for place in range(hole.width):
        part = (rows[:, hole.at + place] & np.uint8(_PAYLOAD)).astype(np.uint64)
        found |= part << np.uint64(7 * place)
    return found.view(np.int64)


def _nullable(rows: Bytes, hole: Hole) -> Ints:
    tag = len(INT_TAG)
    numbers = _numbers(rows, Hole(hole.at + tag, hole.width - tag))
    return np.where(rows[:, hole.at] == INT_TAG[0], numbers, NULL)


def _eight(rows: Bytes, hole: Hole) -> NDArray[Any]:
    return np.ascontiguousarray(rows[:, hole.at : hole.at + hole.width]).reshape(-1).view(np.int64)
