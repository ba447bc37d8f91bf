"""Traces that ranks wrote with torch.profiler, on this host: kept by size and age.

    <folder>/<window>/rank<rank>.json.gz

They are large, so they never leave the host. Perfetto opens them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

KEPT_SECONDS = 7 * 86_400.0
"""Our choice: a week, until somebody looks."""


@dataclass(frozen=True)
class _Trace:
    path: Path
    size_bytes: int
    written_s: float


def prune(folder: Path, most_bytes: float, now_s: float) -> Sequence[Path]:
    """Deletes traces that are too old, and the oldest of what is too much; returns them.

    A folder that cannot be read is left alone.
    """
    gone = _expired(_traces(folder), most_bytes, now_s)
    for path in gone:
        try:
            path.unlink(missing_ok=True)
            path.parent.rmdir()
        except OSError:  # other ranks' traces are there; or it is not ours to delete
            continue
    return gone


def _expired(traces: Sequence[_Trace], most_bytes: float, now_s: float) -> list[Path]:
    gone, total = [], 0
    for trace in sorted(traces, key=lambda one: (-one.written_s, one.path)):
        total += trace.size_bytes
        if total > most_bytes or now_s - trace.written_s > KEPT_SECONDS:
            gone.append(trace.path)
    return gone[::-1]


def _traces(folder: Path) -> list[_Trace]:
    found = []
    for path in sorted(folder.glob("*/*")):
        try:
            about = path.lstat()
        except OSError:
            continue
        found.append(_Trace(path, about.st_size, about.st_mtime))
    return found
