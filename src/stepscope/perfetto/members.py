"""Compresses data into gzip members; every gzip reader reads concatenated members as one stream.

    1F 8B 08 00 00000000 04 FF      gzip without name and time; fastest level; unknown system
    deflate (RFC 1952), alternating
        blocks of rows                  by native/src/deflate.hpp, in 0.4 of the time
        all else                        by ISA-L: three times the speed of zlib, the same size
    crc32, size                     of the uncompressed data

Each of the two compressors starts afresh after the other. This costs a hundred bytes and ensures
that neither refers back to the other's output.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from struct import Struct

try:
    from isal import isal_zlib as packer
except ImportError:  # a platform without it
    packer = zlib  # type: ignore[misc]
try:
    from stepscope._native import deflated_rows
except ImportError:  # installed where nothing could be compiled
    deflated_rows = None  # type: ignore[assignment]

_LEVEL = 1
_RAW = -15
"""zlib's code for raw deflate with its largest window."""
_HEAD = bytes((0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 4, 255))
_TAIL = Struct("<II")
_ROWS_BYTES = 1 << 14
"""Smallest block worth its own Huffman codes, which take 180 bytes."""
_ROW_HEAD = 3
"""Bytes that identify a row: a packet's tag, its size and the tag of its time."""
_LONGEST_ROW = 1 << 10


def packed(data: bytes) -> bytes:
    """Compresses data into one member; deterministic."""
    return packed_parts((data,))


def packed_parts(parts: Iterable[bytes]) -> bytes:
    """Compresses parts from an iterator into one member; they need not all be in memory."""
    return b"".join(_member(parts))


def _member(parts: Iterable[bytes]) -> Iterator[bytes]:
    to = packer.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
    crc = size = 0
    yield _HEAD
    for part in parts:
        crc, size = packer.crc32(part, crc), size + len(part)
        row = row_of(part)
        if row:
            yield to.flush(zlib.Z_FULL_FLUSH)
            yield deflated_rows(part, row)
        else:
            yield to.compress(part)
    yield to.flush()
    yield _TAIL.pack(crc, size & 0xFFFFFFFF)


def row_of(part: bytes) -> int:
    """The row length of a block written by `protobuf.Pattern`: the distance at which its first
    bytes recur. 0: it is not such a block, or not worth compressing as one.

    A wrong guess only costs space and time; the compressed data is correct in any case.
    """
    if deflated_rows is None or len(part) < _ROWS_BYTES:
        return 0
    row = part.find(part[:_ROW_HEAD], _ROW_HEAD, _LONGEST_ROW)
    return row if row > 0 and len(part) % row == 0 else 0
