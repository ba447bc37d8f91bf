"""Gzip members, and the blocks of rows in them, as zlib decompresses them."""

from __future__ import annotations

import gzip
import random
import zlib
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope._native import deflated_rows
from stepscope.perfetto import members
from stepscope.perfetto.members import packed, packed_parts, row_of
from stepscope.perfetto.packets import GroupWriter
from stepscope.perfetto.slices import Slices, Track
from stepscope.window import Strings

from .test_packets import RANK, T0

_LAST_BLOCK = b"\x03\x00"
"""An empty one: blocks of rows are none."""
FARTHEST = 1 << 15


def unpacked(blocks: bytes) -> bytes:
    return zlib.decompressobj(-15).decompress(blocks + _LAST_BLOCK)


@st.composite
def alike(draw: st.DrawFn) -> tuple[bytes, int]:
    """Rows of which some columns change now and then, side by side and apart."""
    row = draw(st.sampled_from((1, 2, 3, 4, 7, 77, 258, 259, 260, 261, 600, 4097)))
    count = draw(st.integers(1, 400))
    columns = draw(st.lists(st.integers(0, row - 1), max_size=12))
    often = draw(st.sampled_from((0.0, 0.01, 0.3, 1.0)))
    some = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    rows = np.tile(some.integers(0, 256, row, np.uint8), (count, 1))
    for column in columns:
        changes = some.random(count) < often
        rows[:, column] += np.cumsum(changes * some.integers(0, 256, count)).astype(np.uint8)
    return rows.tobytes(), row


@settings(max_examples=150, deadline=None)
@given(alike())
def test_rows_come_out_as_they_went_in(some: tuple[bytes, int]) -> None:
    data, row = some
    assert unpacked(deflated_rows(data, row)) == data


@pytest.mark.parametrize("row", [1, 5, 100, FARTHEST])
def test_any_bytes_are_rows(row: int) -> None:
    data = random.Random(row).randbytes(4 * FARTHEST // row * row)
    found = deflated_rows(data, row)
    assert unpacked(found) == data
    assert len(found) < 1.2 * len(data) + 300


def test_the_rarest_bytes_have_codes_that_deflate_allows() -> None:
    """Counts that grow as Fibonacci's would give codes of more than fifteen bits."""
    counts = [1, 1]
    while len(counts) < 24:
        counts.append(counts[-1] + counts[-2])
    often = [byte for byte, count in enumerate(counts) for _ in range(count)]
    random.Random(1).shuffle(often)
    row = 500
    data = bytes(often[: len(often) // row * row])
    assert unpacked(deflated_rows(data, row)) == data


@pytest.mark.parametrize("data, row", [(b"", 1), (b"abc", 2), (b"ab", 0), (b"ab", -1),
                                       (bytes(FARTHEST + 1), FARTHEST + 1)])  # fmt: skip
def test_what_are_no_rows(data: bytes, row: int) -> None:
    with pytest.raises(ValueError, match="no "):
        deflated_rows(data, row)


def blocks(count: int) -> list[bytes]:
    start = T0 + np.cumsum(np.random.default_rng(count).integers(10, 9000, count))
    names = Strings((np.arange(count) % 3).astype(np.int32), ("gemm", "copy", "set"))
    return list(GroupWriter(RANK).track(Track("stream 7", Slices(start, start + 5, names))))


def test_a_track_is_packed_as_rows() -> None:
    written = blocks(3000)
    assert [row_of(part) > 0 for part in written] == [False, False, True, True]
    rows = [row_of(part) for part in written[2:]]
    assert rows[0] == rows[1] and len(written[2]) == 2048 * rows[0]
    assert all(row_of(part) == 0 for part in blocks(20)), "few of them are not"


@pytest.mark.parametrize("native", [True, False])
def test_members_of_rows_and_of_all_else(native: bool) -> None:
    """In any order, and without what was compiled."""
    written = [*blocks(5000), b"", *blocks(9), *blocks(2500)]
    for parts in (written, [written[2]], written[2:] + written[:2], [], [b""]):
        with patch.object(members, "deflated_rows", deflated_rows if native else None):
            member = packed_parts(parts)
        assert gzip.decompress(member) == b"".join(parts)
        assert gzip.decompress(member + packed(b"more")) == b"".join([*parts, b"more"])
    assert len(packed_parts(written)) < 1.1 * len(gzip.compress(b"".join(written), 1))


def test_bytes_that_only_look_like_rows() -> None:
    """Of a length that is no multiple, and of rows of other lengths behind them."""
    written = blocks(2048)[2]
    for part in (written + b"\n", written * 2, (b"\n\x28@" + bytes(20)) * 1000, bytes(1 << 15)):
        assert gzip.decompress(packed(part)) == part
