"""Members of gzip: a file of many members is one stream to every reader of gzip.

    1F 8B 08 00 00000000 04 FF      gzip, without a name or a time; packed fast; on whatever system
    deflate, in turn of                 RFC 1952
        blocks of rows                  by native/src/deflate.hpp, in 0.4 of the time of the others
        all else                        by ISA-L, at three times the speed of zlib, as small
    crc32, size                     of what was packed

Each of the two packers begins anew after the other, which costs a hundred bytes and keeps both from
pointing back to what the other wrote.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from struct import Struct

try:
    from isal import isal_zlib as packer
except ImportError:  # a processor that it was not made for
    packer = zlib  # type: ignore[misc]
try:
    from stepscope._native import deflated_rows
except ImportError:  # installed where nothing could be compiled
    deflated_rows = None  # type: ignore[assignment]

_LEVEL = 1
_RAW = -15
"""zlib's code for its largest window, and nothing around what is packed."""
_HEAD = bytes((0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 4, 255))
_TAIL = Struct("<II")
_ROWS_BYTES = 1 << 14
"""Less than that is not worth a block of its own, whose codes alone take 180 bytes."""
_ROW_HEAD = 3
"""Bytes by which a row is known: of a packet its tag, its size and the tag of its time."""
_LONGEST_ROW = 1 << 10


def packed(data: bytes) -> bytes:
    """One member; the same bytes for the same data."""
    return packed_parts((data,))


def packed_parts(parts: Iterable[bytes]) -> bytes:
    """One member of what comes part by part, which need not all be in memory."""
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
    """How long each row of a block of them is, as `protobuf.Pattern` writes them: until what it
    begins with comes again. 0: it is none, or not worth to be packed as one.

    To be wrong costs room and time, and nothing else: rows are packed as any bytes are.
    """
    if deflated_rows is None or len(part) < _ROWS_BYTES:
        return 0
    row = part.find(part[:_ROW_HEAD], _ROW_HEAD, _LONGEST_ROW)
    return row if row > 0 and len(part) % row == 0 else 0
