"""Writes a trace of `torch.profiler`, compressed, so that readers see all of it or nothing."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import BinaryIO, Protocol

_CHUNK_BYTES = 1 << 20
_LEVEL = 1
"""Traces shrink to a fifteenth at the first level already; the sixth takes twice as long for a
fifth less (measured)."""
_GZIP = 31
"""zlib's number for the format of gzip files, with the largest window."""


class Trace(Protocol):
    """The profiler's result."""

    def save(self, path: str) -> None: ...


def write(trace: Trace, path: Path) -> None:
    """Writes a trace to a `.json.gz`, and makes its folder.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    plain, part = path.with_name(f"{path.name}.raw"), path.with_name(f"{path.name}.part")
    try:
        trace.save(str(plain))
        with plain.open("rb") as source, part.open("wb") as target:
            _compress(source, target)
        part.replace(path)
    finally:
        for left in (plain, part):
            left.unlink(missing_ok=True)


def _compress(source: BinaryIO, target: BinaryIO) -> None:
    """Lets other threads run meanwhile: zlib releases the GIL for chunks like these."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    while chunk := source.read(_CHUNK_BYTES):
        target.write(packer.compress(chunk))
    target.write(packer.flush())
    target.flush()
    os.fsync(target.fileno())
