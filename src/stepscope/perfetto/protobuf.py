"""Protobuf messages, one at a time or thousands of the same shape at once.

A varint may be longer than it has to be: the bytes `81 80 00` are 1 as well. So all rows of a kind
can have the same length: `Pattern` is what they share, with holes where each has a number of its
own, which `native/src/rows.hpp` fills in, or numpy a column of bytes at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.window import Floats, Ints, Mask

try:
    from stepscope._native import rows as native_rows
except ImportError:  # installed where nothing could be compiled
    native_rows = None  # type: ignore[assignment]

VARINT, FIXED64, BYTES = 0, 1, 2
"""Wire types."""

TIME_WIDTH = 9
"""Bytes of a padded varint that hold any time: 63 bits."""
BLOCK = 1 << 11
"""Rows at a time, 200 KB: they are still in the cache when they are packed."""
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
    """Where each row has a number of its own, from byte `at` on: a varint padded to `width` bytes,
    or eight bytes where that is 0."""

    at: int
    width: int
    values: Ints


@dataclass(frozen=True)
class Swap:
    """Bytes that stand from `at` on in place of what some rows have there."""

    at: int
    instead: bytes
    rows: Mask


@dataclass(frozen=True)
class Pattern:
    """Rows of equal length: the bytes they share, and holes."""

    shared: bytes = b""
    holes: tuple[Hole, ...] = ()
    swaps: tuple[Swap, ...] = ()

    def __add__(self, other: Pattern | bytes) -> Pattern:
        if isinstance(other, bytes):
            return Pattern(self.shared + other, self.holes, self.swaps)
        by = len(self.shared)
        return Pattern(
            self.shared + other.shared,
            self.holes + tuple(Hole(hole.at + by, hole.width, hole.values) for hole in other.holes),
            self.swaps + tuple(Swap(swap.at + by, swap.instead, swap.rows) for swap in other.swaps),
        )

    def within(self, number: int) -> Pattern:
        """The rows as a field of a message around them."""
        return Pattern(tag(number, BYTES) + varint(len(self.shared))) + self

    def blocks(self, count: int) -> Iterator[bytes]:
        """All rows, one after the other, so many at a time."""
        for first in range(0, count, BLOCK):
            rows = slice(first, min(first + BLOCK, count))
            yield self._taken(rows)._rows(rows.stop - rows.start)

    def _taken(self, rows: slice) -> Pattern:
        return Pattern(
            self.shared,
            tuple(Hole(hole.at, hole.width, hole.values[rows]) for hole in self.holes),
            tuple(Swap(swap.at, swap.instead, swap.rows[rows]) for swap in self.swaps),
        )

    def _rows(self, count: int) -> bytes:
        rows = write_rows(self.shared, count, self.holes)
        if not self.swaps:
            return rows
        table = np.frombuffer(bytearray(rows), np.uint8).reshape(count, len(self.shared))
        for swap in self.swaps:
            table[swap.rows, swap.at : swap.at + len(swap.instead)] = np.frombuffer(
                swap.instead, np.uint8
            )
        return table.tobytes()


def varints(number: int, values: Ints, width: int) -> Pattern:
    """A field that differs from row to row, in `width` bytes."""
    return Pattern(tag(number, VARINT)) + Pattern(bytes(width), (Hole(0, width, values),))


def fixed64s(number: int, values: Ints | Floats) -> Pattern:
    """A field of eight bytes that differs from row to row: a double, or a fixed64."""
    bits = np.ascontiguousarray(values).view(np.int64)
    return Pattern(tag(number, FIXED64)) + Pattern(bytes(8), (Hole(0, 0, bits),))


def varints_or_text(number: int, values: Ints, null: int, text_number: int, text: str) -> Pattern:
    """Any int64 per row, or where it is null a text in its place.

        known     tag(number)  v v v v v v v v v v     ten bytes of varint
        null      tag(text)  9  n o t   k n o w n      a length, and nine characters

    Both are eleven bytes, so rows with nulls keep the length of the others.
    """
    instead = field(text_number, text)
    rows = varints(number, values, LONGEST)
    assert len(instead) == len(rows.shared), f"{text!r} must have {LONGEST - 1} bytes"
    return replace(rows, swaps=(Swap(0, instead, values == null),))


def write_rows(shared: bytes, count: int, holes: Sequence[Hole]) -> bytes:
    """Rows of the same bytes but in holes; in C++ where that was compiled."""
    if native_rows is None:
        return write_rows_slowly(shared, count, holes)
    columns = tuple((hole.at, hole.width, _bytes_of(hole.values)) for hole in holes)
    return native_rows(shared, count, columns)


def write_rows_slowly(shared: bytes, count: int, holes: Sequence[Hole]) -> bytes:
    """The same a column of bytes at a time, by numpy: a fifth of the speed."""
    out = np.empty((count, len(shared)), np.uint8)
    out[:] = np.frombuffer(shared, np.uint8)
    for hole in holes:
        if hole.width == 0:
            out[:, hole.at : hole.at + 8] = np.frombuffer(_bytes_of(hole.values), np.uint8).reshape(
                -1, 8
            )
            continue
        rest = hole.values.astype(np.uint64)
        for at in range(hole.at, hole.at + hole.width):
            # casting keeps the lowest eight bits; the top one says whether another byte follows
            out[:, at] = rest.astype(np.uint8) | np.uint8(0x80)
            rest >>= np.uint64(7)
        out[:, hole.at + hole.width - 1] &= np.uint8(0x7F)
    return out.tobytes()


def _bytes_of(values: Ints) -> bytes:
    return values.astype("<i8", copy=False).tobytes()
