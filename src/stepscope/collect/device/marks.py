"""Marks at the ends of phases, and the phases between them once the device has passed them.

ARGUS, section 4.2: CUDA events at both ends of a phase measure how long the *device* took. A mark
is an event from a pool that grows on demand up to `MOST_EVENTS`; the event returns to the pool when
its mark is no longer referenced. Nothing waits for the device: events are queried after a later
optimizer step, on the training thread. Another thread must not query: `cudaEventQuery` anywhere in
a process invalidates a CUDA graph that is being captured (capture mode `global`, torch's default).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepscope.collect.device.clock import DeviceClock, in_ns
from stepscope.collect.device.gpu import Event, Gpu
from stepscope.collect.guard import report

MOST_EVENTS = 2048
"""Maximal number of marks at a time: those of four steps of 128 layers with attention and MLP
marked at both ends. Only a host that runs several steps ahead of its device needs more."""
AT_ONCE = 16
"""Maximal number of phases settled at a time, with five CUDA calls each; or half of those that
wait, if that is more, so that the backlog of a step with many microbatches shrinks fast enough."""
MOST_WAITING = 256
"""If more phases wait, some are settled when the next mark is set: the optimizer of a script may
not be one of torch's, and then its steps are not hooked."""


class Mark:
    """A position in a stream; its event returns to the pool when the mark is deleted."""

    __slots__ = ("_pool", "event", "stream")

    def __init__(self, pool: deque[Event], event: Event, stream: Any) -> None:
        self._pool = pool
        self.event = event
        self.stream = stream

    def __del__(self) -> None:
        self._pool.append(self.event)


class Missed:
    """No mark could be set: the pool is empty, or a graph is being captured."""


MISSED = Missed()
Place = Mark | Missed | None
"""None: no device is in use, so only the host's time is known."""


@dataclass(frozen=True, slots=True)
class Between:
    """A phase whose device times are not known yet.

    Args:
        start_ns: the host's time at its first mark.
        tell: called with the device's start on the host's clock, the duration, and how much of its
            end was waiting (None if that has no mark); all in ns.
    """

    start: Mark
    end: Mark
    start_ns: int
    tell: Callable[[int, int, int | None], None]
    waits_from: Mark | None = None


class Marks:
    """Sets marks and settles the phases between them, all on the training thread.

    Args:
        lost: called for each phase that will never be settled.
        renewed: called with the error in ns of each new anchor of the clock.
    """

    def __init__(
        self,
        gpu: Gpu,
        lost: Callable[[], None],
        renewed: Callable[[int], None],
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._gpu = gpu
        self._lost, self._renewed = lost, renewed
        self._clock = DeviceClock(gpu, now)
        self._pool: deque[Event] = deque()
        self._made = 0
        self._pending: deque[Between] = deque()
        self._captures = 0
        # held only for short times: while we use events, and while a capture begins
        self._touching = threading.Lock()
        self._broken = False

    def set(self, stream: Any = None) -> Place:
        """Sets a mark at the current end of a stream, by default of the current stream."""
        return self._safely(lambda: self._set(stream), None)

    def settle(self) -> None:
        """Reports the phases that the device has finished, oldest first."""
        self._safely(self._settle_some, None)

    def finish(self) -> None:
        """At the end: settles what is complete; the rest is lost."""
        self._safely(lambda: self._settle(len(self._pending)), None)
        while self._pending:
            self._pending.popleft()
            self._lost()

    def add(self, phase: Between) -> None:
        """Adds a phase to settle; may be called on any thread."""
        if self._broken:
            self._lost()
        else:
            self._pending.append(phase)

    def capture_begins(self) -> None:
        """A CUDA graph is captured from now on: no event is used until that ends."""
        with self._touching:
            self._captures += 1

    def capture_ended(self) -> None:
        self._captures = max(self._captures - 1, 0)

    def _safely(self, do: Callable[[], Place], otherwise: Place) -> Place:
        """After one fault we never use an event again, because CUDA errors are often permanent."""
        if self._broken or not self._gpu.is_in_use():
            return otherwise
        if not self._touching.acquire(blocking=False):
            return MISSED
        try:
            return MISSED if self._captures or self._gpu.is_off_limits() else do()
        except Exception as error:  # noqa: BLE001 - the guest's promise
            self._broken = True
            report("device events", error)
            return otherwise
        finally:
            self._touching.release()

    def _set(self, stream: Any) -> Place:
        event = self._event()
        if event is None:
            return MISSED
        stream = self._gpu.stream() if stream is None else stream
        event.record(stream)
        if len(self._pending) > MOST_WAITING:
            self._settle_some()
        return Mark(self._pool, event, stream)

    def _event(self) -> Event | None:
        if self._pool:
            return self._pool.popleft()
        if self._made >= MOST_EVENTS:
            return None
        self._made += 1
        return self._gpu.event()

    def _settle_some(self) -> None:
        self._settle(max(AT_ONCE, len(self._pending) // 2))

    def _settle(self, most: int) -> None:
        if self._clock.look():
            self._renewed(self._clock.error_ns())
        for _ in range(most):
            if not (self._pending and self._clock.is_set and _is_done(self._pending[0])):
                return
            self._tell(self._pending.popleft())

    def _tell(self, phase: Between) -> None:
        start, end = phase.start.event, phase.end.event
        begun_ns = self._clock.place_ns(start, phase.start_ns)
        waits = phase.waits_from
        waited_ns = None if waits is None else max(in_ns(waits.event.elapsed_time(end)), 0)
        phase.tell(begun_ns, max(in_ns(start.elapsed_time(end)), 0), waited_ns)


def _is_done(phase: Between) -> bool:
    """Whether all of its marks are complete; they may be in several streams."""
    marks = (phase.end, phase.start, phase.waits_from)
    return all(mark is None or mark.event.query() for mark in marks)
