"""Finds Perfetto traces that stepscope wrote, by their first packet."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

from stepscope.errors import SourceError
from stepscope.formats.walking import files_below, has_contents
from stepscope.perfetto.packets import clock_packet

_NAMED = re.compile(r"\.(?:perfetto-trace|pftrace)(?:\.gz)?$")
_HEAD_BYTES = 1 << 10
_ANY_GZIP = zlib.MAX_WBITS | 16


def trace_files(source: Path) -> list[Path]:
    """Files below a folder with a usual name of a Perfetto trace, or the file itself.

    Raises:
        SourceError: there are none.
    """
    if source.is_file():
        return [source]
    found = [path for path in files_below(source) if _is_named_so(path)]
    if not found:
        raise SourceError(f"no Perfetto traces in {source}: expected *.perfetto-trace.gz")
    return found


def recognise(path: Path) -> bool:
    """Whether a file is a trace of stepscope, by its first bytes or its name, or any file of a
    folder has the name of one."""
    try:
        if path.is_file():
            return _is_named_so(path) or begins_so(path)
        return any(map(_is_named_so, files_below(path)))
    except (OSError, SourceError):
        return False


def _is_named_so(path: Path) -> bool:
    return _NAMED.search(path.name) is not None


def begins_so(path: Path) -> bool:
    """Whether a file begins as every trace of stepscope does."""
    if not has_contents(path):
        return False
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if head[:2] == b"\x1f\x8b":
            head = zlib.decompressobj(_ANY_GZIP).decompress(head, _HEAD_BYTES)
    except (OSError, zlib.error):
        return False
    return head.startswith(clock_packet())
