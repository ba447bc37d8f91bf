"""What Perfetto's engine shows of a trace, as rows that tests can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .engine import TraceProcessor

Rows = list[dict[str, Any]]


def shown(perfetto: TraceProcessor, trace: bytes, since_ns: int) -> Rows:
    """Every slice: its rank and that one's name, its track, when it was, how deep it lies."""
    perfetto.load(trace)
    assert perfetto.complaints() == {}
    return perfetto.query(
        "select pid as rank, process.name as who, t.name as track, slice.name as name, "
        f"ts - {since_ns} as at, dur, depth, track_id as lane "
        "from slice left join process_track as t on t.id = track_id "
        "left join process using (upid) order by pid, track, ts, depth"
    )


def brief(rows: Sequence[dict[str, Any]], *keys: str) -> list[tuple[Any, ...]]:
    """The rows with these columns alone."""
    return [tuple(row[key] for key in keys) for row in rows]
