"""Pauses of Python's garbage collector, from the interpreter's own callbacks.

Young collections run hundreds of times a second and take microseconds; only pauses that are long
enough to matter are recorded.
"""

from __future__ import annotations

import gc
import time
from typing import Any

from stepscope.collect.guard import guarded
from stepscope.collect.session import Session
from stepscope.wire.records import RecordKind

SHORTEST_PAUSE_NS = 500_000
"""1 % of a 50 ms step."""
COUNT_SECONDS = 10.0


def install(session: Session) -> None:
    watch = _GarbageWatch(session)
    gc.callbacks.append(watch.callback)
    session.before_flush.append(watch.tell)


class _GarbageWatch:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._start = 0
        self._collections = 0
        self._told_at = 0.0

    def tell(self) -> None:
        """Reports the number of collections, to distinguish no long pause from no data."""
        if self._session.started and time.monotonic() - self._told_at >= COUNT_SECONDS:
            self._told_at = time.monotonic()
            self._session.count("gc_collections", self._collections)

    def callback(self, phase: str, _info: dict[str, Any]) -> None:
        """Runs twice per collection, at any point of the script's code."""
        if phase == "start":
            self._collections += 1
            self._start = time.monotonic_ns()
        elif time.monotonic_ns() - self._start >= SHORTEST_PAUSE_NS and self._start:
            self._long_pause(self._start, time.monotonic_ns())

    @guarded
    def _long_pause(self, start_ns: int, end_ns: int) -> None:
        name = self._session.name("gc")
        self._session.emit(RecordKind.PAUSE, 0, name, start_ns, end_ns - start_ns)
