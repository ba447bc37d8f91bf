"""Marks at the ends of phases, and the phases between them once the device has come by.

ARGUS, section 4.2: events of CUDA at both ends of a phase tell how long the *device* took. A mark
is an event from a pool that is filled by need and never beyond `MOST_EVENTS`; it returns when
nobody holds its mark any more. Nothing waits for the device: whether it came by is asked after a
later optimizer step, on the training thread. Another thread must not ask: `cudaEventQuery` anywhere
in a process invalidates a CUDA graph that is captured meanwhile (capture mode `global`, torch's
default).
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
"""Marks at one time: of a step of 128 layers whose attention and MLP are marked at both ends, four
times over. Only a host that runs several steps ahead of its device needs more."""
AT_ONCE = 16
"""Phases that one look settles at the most, five calls of CUDA each; or half of those that wait, so
that a step of many microbatches is settled in as many steps as its marks are there for."""
MOST_WAITING = 256
"""Of more phases some are settled when the next mark is set: a script whose optimizer is none of
torch's never steps for us."""


class Mark:
    """A place in a stream; its event goes back to the pool with it."""

    __slots__ = ("_pool", "event", "stream")

    def __init__(self, pool: deque[Event], event: Event, stream: Any) -> None:
        self._pool = pool
        self.event = event
        self.stream = stream

    def __del__(self) -> None:
        self._pool.append(self.event)


class Missed:
    """No mark could be set: the pool is empty, or a graph is captured."""


MISSED = Missed()
Place = Mark | Missed | None
"""None: no device is in use, so the host's time is all there is."""


@dataclass(frozen=True, slots=True)
class Between:
    """A phase whose device times are still to come.

    Args:
        start_ns: the host's time at its first mark.
        tell: takes the device's start on the host's clock, the duration, and how much of it at the
            end was waiting, None where that had no mark; all in ns.
    """

    start: Mark
    end: Mark
    start_ns: int
    tell: Callable[[int, int, int | None], None]
    waits_from: Mark | None = None


class Marks:
    """Sets marks and settles what lies between them, all on the training thread.

    Args:
        lost: told of a phase that will never be settled.
        renewed: told of each new anchor of the clock, by its error in ns.
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
        # held while we touch events, and while somebody begins a capture: never for long
        self._touching = threading.Lock()
        self._broken = False

    def set(self, stream: Any = None) -> Place:
        """A mark where a stream, else the current one, stands now."""
        return self._safely(lambda: self._set(stream), None)

    def settle(self) -> None:
        """Looks which phases the device has finished, oldest first, and tells of them."""
        self._safely(self._settle_some, None)

    def finish(self) -> None:
        """At the end: settles all that is done; the rest is lost."""
        self._safely(lambda: self._settle(len(self._pending)), None)
        while self._pending:
            self._pending.popleft()
            self._lost()

    def add(self, phase: Between) -> None:
        """On any thread: a phase to settle."""
        if self._broken:
            self._lost()
        else:
            self._pending.append(phase)

    def capture_begins(self) -> None:
        """A CUDA graph is captured from now on: no event is touched until that ends."""
        with self._touching:
            self._captures += 1

    def capture_ended(self) -> None:
        self._captures = max(self._captures - 1, 0)

    def _safely(self, do: Callable[[], Place], otherwise: Place) -> Place:
        """One fault, and we touch no event any more: a CUDA error often stays."""
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
    """All of its marks, as they may lie in several streams."""
    marks = (phase.end, phase.start, phase.waits_from)
    return all(mark is None or mark.event.query() for mark in marks)
