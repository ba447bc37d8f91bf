"""Members of gzip: a file of many is one stream to every reader of gzip.

ISA-L packs traces at three times the speed of zlib, as small (`benchmarks/perfetto.py`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

try:
    from isal import isal_zlib as packer
except ImportError:  # a processor that it was not made for
    packer = zlib  # type: ignore[misc]

_LEVEL = 1
_GZIP = 31
"""zlib's code for a gzip header, without a time, and its largest window."""


def packed(data: bytes) -> bytes:
    """One member; the same bytes for the same data."""
    return packed_parts((data,))


def packed_parts(parts: Iterable[bytes]) -> bytes:
    """One member of what comes part by part, which need not all be in memory."""
    to = packer.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return b"".join([*map(to.compress, parts), to.flush()])
