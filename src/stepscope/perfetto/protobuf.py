"""Protobuf messages, one at a time or thousands of the same shape at once.

A varint may be longer than it has to be: the bytes `81 80 00` are 1 as well. So all rows of a kind
can have the same length, and numpy writes a column of them at a time: `Pattern` is what the rows
share, with holes where each has its own bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.window import Floats, Ints

VARINT, FIXED64, BYTES = 0, 1, 2
"""Wire types."""

TIME_WIDTH = 9
"""Bytes of a padded varint that hold any time: 63 bits."""
LONGEST = 10
"""Bytes of a varint of any int64; negative ones have 64 bits."""


def varint(value: int) -> bytes:
    """The shortest encoding of a number; negative ones as their two's complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def tag(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def field(number: int, value: int | str | bytes) -> bytes:
    """One field: a number, a text or a message."""
    if isinstance(value, int):
        return tag(number, VARINT) + varint(value)
    data = encoded(value) if isinstance(value, str) else value
    return tag(number, BYTES) + varint(len(data)) + data


def encoded(text: str) -> bytes:
    """UTF-8; names may hold lone surrogates (file names do), which it cannot say.

    Perfetto's answers to queries separate strings by a zero byte, so none may hold one.
    """
    return text.replace("\0", "?").encode("utf-8", "replace")


def width_of(largest: int) -> int:
    """How many bytes hold every number from 0 to this one."""
    return max(1, -(-largest.bit_length() // 7))


@dataclass(frozen=True)
class Hole:
    """Where each row has bytes of its own: `cells[i]` is byte `at + i` of all rows."""

    at: int
    cells: NDArray[np.uint8]


@dataclass(frozen=True)
class Pattern:
    """Rows of equal length: the bytes they share, and holes."""

    shared: bytes = b""
    holes: tuple[Hole, ...] = ()

    def __add__(self, other: Pattern | bytes) -> Pattern:
        if isinstance(other, bytes):
            return Pattern(self.shared + other, self.holes)
        moved = tuple(Hole(hole.at + len(self.shared), hole.cells) for hole in other.holes)
        return Pattern(self.shared + other.shared, self.holes + moved)

    def within(self, number: int) -> Pattern:
        """The rows as a field of a message around them."""
        return Pattern(tag(number, BYTES) + varint(len(self.shared))) + self

    def rows(self, count: int) -> NDArray[np.uint8]:
        """`[row, byte]`."""
        out = np.empty((count, len(self.shared)), np.uint8)
        out[:] = np.frombuffer(self.shared, np.uint8)
        for hole in self.holes:
            for at, cells in enumerate(hole.cells, hole.at):
                out[:, at] = cells
        return out


def _hole(cells: NDArray[np.uint8]) -> Pattern:
    return Pattern(bytes(len(cells)), (Hole(0, cells),))


def varints(number: int, values: Ints, width: int) -> Pattern:
    """A field that differs from row to row, in `width` bytes."""
    return Pattern(tag(number, VARINT)) + _hole(_varint_cells(values, width))


def _varint_cells(values: Ints, width: int) -> NDArray[np.uint8]:
    rest = values.astype(np.uint64)
    cells = np.empty((width, len(values)), np.uint8)
    for at in range(width):
        # casting keeps the lowest eight bits; the top one says whether another byte follows
        np.bitwise_or(rest.astype(np.uint8), np.uint8(0x80), out=cells[at])
        rest >>= np.uint64(7)
    cells[-1] &= np.uint8(0x7F)
    return cells


def fixed64s(number: int, values: Ints | Floats) -> Pattern:
    """A field of eight bytes that differs from row to row: a double, or a fixed64."""
    little = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False)
    cells = little.view(np.uint8).reshape(-1, 8).T
    return Pattern(tag(number, FIXED64)) + _hole(cells)


def varints_or_text(number: int, values: Ints, null: int, text_number: int, text: str) -> Pattern:
    """Any int64 per row, or where it is null a text in its place.

        known     tag(number)  v v v v v v v v v v     ten bytes of varint
        null      tag(text)  9  n o t   k n o w n      a length, and nine characters

    Both are eleven bytes, so rows with nulls keep the length of the others.
    """
    data = encoded(text)
    assert len(data) == LONGEST - 1, f"{text!r} must have {LONGEST - 1} bytes"
    cells = np.empty((1 + LONGEST, len(values)), np.uint8)
    cells[:1], cells[1:] = tag(number, VARINT)[0], _varint_cells(values, LONGEST)
    instead = np.frombuffer(tag(text_number, BYTES) + varint(len(data)) + data, np.uint8)
    cells[:, values == null] = instead[:, None]
    return _hole(cells)
