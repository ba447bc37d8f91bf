"""Encodes protobuf messages, one at a time or thousands of the same shape at once.

A varint may be longer than necessary: the bytes `81 80 00` also encode 1. So all rows of a kind can
have the same length. A `Pattern` has the bytes that they share, and holes for the numbers of each
row. `native/src/rows.hpp` fills the holes, or numpy one column of bytes at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from stepscope.window import Floats, Ints, Mask

try:
    from stepscope._native import rows as native_rows
except ImportError:  # installed where nothing could be compiled
    native_rows = None  # type: ignore[assignment]

VARINT, FIXED64, BYTES = 0, 1, 2
"""Wire types."""

FIXED_WIDTH = 8
TIME_WIDTH = 9
"""Bytes of a padded varint for any time: 63 bits."""
BLOCK = 1 << 11
"""Rows at a time, 200 KB: they are still in the cache when they are compressed."""
LONGEST = 10
"""Bytes of a varint of any int64; negative ones have 64 bits."""


_ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))


def varint(value: int) -> bytes:
    """The shortest encoding of a number; negative ones as their two's complement."""
    if 0 <= value < len(_ONE_BYTE):
        return _ONE_BYTE[value]
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


@cache
def tag(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def field(number: int, value: int | str | bytes) -> bytes:
    """Encodes one field: a number, a text or a message."""
    if isinstance(value, int):
        return tag(number, VARINT) + varint(value)
    data = encoded(value) if isinstance(value, str) else value
    return tag(number, BYTES) + varint(len(data)) + data


def encoded(text: str) -> bytes:
    """Encodes text as UTF-8; lone surrogates, as in some file names, are replaced.

    Zero bytes are replaced too, because Perfetto's query results use them as separators.
    """
    return text.replace("\0", "?").encode("utf-8", "replace")


def width_of(largest: int) -> int:
    """The number of varint bytes for every number from 0 to this one."""
    return max(1, -(-largest.bit_length() // 7))


class Hole(NamedTuple):
    """The place of a number that differs by row, from byte `at` on: a varint padded to `width`
    bytes, or eight bytes if that is 0."""

    at: int
    width: int
    values: Ints


class _Gap(NamedTuple):
    """A hole whose position is not known yet."""

    width: int
    values: Ints

    def __len__(self) -> int:
        return self.width or FIXED_WIDTH


class _Swap(NamedTuple):
    """Bytes that replace the following ones in some rows."""

    instead: bytes
    rows: Mask

    def __len__(self) -> int:
        return 0


_Part = bytes | _Gap | _Swap


class Pattern:
    """Rows of equal length: shared bytes and holes.

    Patterns are lists of parts that are laid out once at the end: a pattern is nested in five
    others, and moving its holes in each took half the time of writing a track.
    """

    def __init__(self, parts: tuple[_Part, ...], size: int) -> None:
        self._parts = parts
        self.size = size
        """Bytes of a row."""

    @classmethod
    def of(cls, *parts: _Part) -> Pattern:
        return cls(parts, sum(map(len, parts)))

    def __add__(self, other: Pattern | bytes) -> Pattern:
        if isinstance(other, bytes):
            return Pattern((*self._parts, other), self.size + len(other))
        return Pattern(self._parts + other._parts, self.size + other.size)

    def within(self, number: int) -> Pattern:
        """The rows as a field of an enclosing message."""
        head = tag(number, BYTES) + varint(self.size)
        return Pattern((head, *self._parts), len(head) + self.size)

    def blocks(self, count: int) -> Iterator[bytes]:
        """All rows, in blocks of `BLOCK`."""
        shared, gaps, swaps = self._laid_out()
        for first in range(0, count, BLOCK):
            rows = slice(first, min(first + BLOCK, count))
            holes = [Hole(at, gap.width, gap.values[rows]) for at, gap in gaps]
            written = write_rows(shared, rows.stop - rows.start, holes)
            yield _swapped(written, len(shared), rows, swaps) if swaps else written

    def _laid_out(self) -> tuple[bytes, list[tuple[int, _Gap]], list[tuple[int, _Swap]]]:
        """A row with empty holes, and the positions of gaps and swaps."""
        at, shared = 0, []
        gaps: list[tuple[int, _Gap]] = []
        swaps: list[tuple[int, _Swap]] = []
        for part in self._parts:
            if isinstance(part, bytes):
                shared.append(part)
            elif isinstance(part, _Gap):
                gaps.append((at, part))
                shared.append(bytes(len(part)))
            else:
                swaps.append((at, part))
            at += len(part)
        return b"".join(shared), gaps, swaps


def _swapped(
    written: bytes, size: int, rows: slice, swaps: Sequence[tuple[int, _Swap]]
) -> bytes:  # fmt: skip
    table = np.frombuffer(bytearray(written), np.uint8).reshape(-1, size)
    for at, swap in swaps:
        instead = np.frombuffer(swap.instead, np.uint8)
        table[swap.rows[rows], at : at + instead.size] = instead
    return table.tobytes()


def varints(number: int, values: Ints, width: int) -> Pattern:
    """A field that differs from row to row, in `width` bytes."""
    return Pattern.of(tag(number, VARINT), _Gap(width, values))


def fixed64s(number: int, values: Ints | Floats) -> Pattern:
    """A field of eight bytes that differs from row to row: a double, or a fixed64."""
    bits = np.ascontiguousarray(values).view(np.int64)
    return Pattern.of(tag(number, FIXED64), _Gap(0, bits))


def varints_or_text(number: int, values: Ints, null: int, text_number: int, text: str) -> Pattern:
    """An int64 per row, or a text in its place if it is null.

        known     tag(number)  v v v v v v v v v v     ten bytes of varint
        null      tag(text)  9  n o t   k n o w n      a length, and nine characters

    Both are eleven bytes, so rows with nulls keep the length of the others.
    """
    instead = field(text_number, text)
    rows = varints(number, values, LONGEST)
    assert len(instead) == rows.size, f"{text!r} must have {LONGEST - 1} bytes"
    return Pattern.of(_Swap(instead, values == null)) + rows


def write_rows(shared: bytes, count: int, holes: Sequence[Hole]) -> bytes:
    """Writes rows of shared bytes with filled holes; in C++ if it was compiled."""
    if native_rows is None:
        return write_rows_slowly(shared, count, holes)
    columns = tuple((hole.at, hole.width, _bytes_of(hole.values)) for hole in holes)
    return native_rows(shared, count, columns)


def write_rows_slowly(shared: bytes, count: int, holes: Sequence[Hole]) -> bytes:
    """`write_rows` in numpy, a column of bytes at a time: a fifth of the speed."""
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
