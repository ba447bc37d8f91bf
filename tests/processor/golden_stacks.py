"""What py-spy writes, cut down to where it matters (format chrometrace, dump --json)."""

from __future__ import annotations

from typing import Any


def _event(name: str, phase: str, microseconds: int, thread: int, line: int) -> dict[str, Any]:
    return {
        "name": name,
        "cat": "py-spy",
        "ph": phase,
        "ts": microseconds,
        "tid": thread,
        "pid": 1,
        "args": {"filename": "train.py", "line": line},
    }


def chrometrace(*lines: str) -> list[dict[str, Any]]:
    """Events from lines like `100 B 7 load 12`: time in µs, begin or end, thread, name, line."""
    events = []
    for text in lines:
        microseconds, phase, thread, rest = text.split(" ", 3)
        name, _, line = rest.rpartition(" ")
        events.append(_event(name, phase, int(microseconds), int(thread), int(line)))
    return events


TRACE = chrometrace(
    "100 B 7 thread (0x7): MainThread 0",
    "100 B 7 main 40",
    "100 B 7 load 12",
    "300 E 7 load 12",
    "300 B 7 step 20",
    "300 B 7 step 21",
    "100 B 8 thread (0x8): stepscope-sender 0",
    "100 B 8 wait 9",
    "700 E 7 step 21",
    "700 E 7 step 20",
)
"""`main` loads, then steps (in a recursive function), then is alone."""

DUMP: list[dict[str, Any]] = [
    {
        "pid": 1,
        "thread_id": 7,
        "thread_name": "MainThread",
        "active": True,
        "owns_gil": False,
        "frames": [
            {"name": "load", "filename": "a;b.py", "line": 12},
            {"name": "main", "filename": "train.py", "line": 40},
        ],
    },
    {
        "pid": 1,
        "thread_id": 8,
        "thread_name": None,
        "active": False,
        "owns_gil": False,
        "frames": [],
    },
]
