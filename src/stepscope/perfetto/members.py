"""Members of gzip: a file of many is one stream to every reader of gzip.

ISA-L packs traces at three times the speed of zlib, as small (`benchmarks/perfetto.py`).
"""

from __future__ import annotations

import gzip

try:
    from isal import igzip
except ImportError:  # a processor that it was not made for
    igzip = None  # type: ignore[assignment]

_LEVEL = 1


def packed(data: bytes) -> bytes:
    """One member; the same bytes for the same data."""
    if igzip is None:
        return gzip.compress(data, _LEVEL, mtime=0)
    return igzip.compress(data, _LEVEL, mtime=0)
