"""Converts the times of a device's events to the host's clock.

An anchor is an event in our own stream, with two readings of the host's clock: one before it was
recorded, and one after it was found complete. The device reached it in between. The times of other
events follow from their distance to the anchor, which the device measures itself.

Error: half the time between the two readings, plus the drift of the clocks since the anchor, plus
0.5 µs, the resolution of `cudaEventElapsedTime`; `error_ns` returns the sum. If all streams share
one queue (CUDA_DEVICE_MAX_CONNECTIONS=1, as Megatron sets it), an anchor waits behind the work
queued before it. Then the last good anchor stays in use or, if there is none yet, an imprecise one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from stepscope.collect.device.gpu import Event, Gpu

RENEW_NS = 1_000_000_000
"""Anchors older than this are replaced: elapsed time is a 32-bit float of milliseconds, which has
steps of 0.1 µs after two seconds, and of 4 µs after a minute."""
RETRY_NS = 100_000_000
"""Pause between two attempts: each makes about ten CUDA calls."""
LOOKS = 10
"""How often a new anchor is queried at once, at about 1 µs each; then it is left for later."""
DRIFT = 1e-4
"""Two ordinary crystals, each off by 50 parts in a million in opposite directions."""
RESOLUTION_NS = 500
"""Resolution of `cudaEventElapsedTime`, from CUDA's documentation."""


@dataclass(frozen=True)
class Anchor:
    """An event, and the host times between which the device reached it."""

    event: Event
    before_ns: int
    after_ns: int

    @property
    def middle_ns(self) -> int:
        return (self.before_ns + self.after_ns) // 2

    def error_ns(self, at_ns: int) -> int:
        """The maximal error of a time that is computed from this anchor."""
        drifted = int(abs(at_ns - self.middle_ns) * DRIFT)
        return (self.after_ns - self.before_ns) // 2 + drifted + RESOLUTION_NS


class DeviceClock:
    """Keeps the best available anchor. Used on the training thread only."""

    def __init__(self, gpu: Gpu, now: Callable[[], int] = time.monotonic_ns) -> None:
        self._gpu = gpu
        self._now = now
        self._best: Anchor | None = None
        self._late: tuple[Event, int] | None = None
        self._tried_ns: int | None = None
        self._stream: object | None = None

    @property
    def is_set(self) -> bool:
        return self._best is not None

    def look(self) -> bool:
        """Renews the anchor if it is due; returns whether there is a new one."""
        now_ns = self._now()
        if self._best is not None and now_ns - self._best.after_ns < RENEW_NS:
            return False
        if self._tried_ns is not None and now_ns - self._tried_ns < RETRY_NS:
            return False
        self._tried_ns = now_ns
        return self._take_late() or self._try_anew()

    def place_ns(self, event: Event, recorded_ns: int) -> int:
        """The host time at which the device reached a completed event.

        Args:
            recorded_ns: when the host recorded the event; says whether anchor or event is later.
        """
        anchor = self._best
        assert anchor is not None, "no event can be placed before there is an anchor"
        if recorded_ns >= anchor.before_ns:
            return anchor.middle_ns + in_ns(anchor.event.elapsed_time(event))
        return anchor.middle_ns - in_ns(event.elapsed_time(anchor.event))

    def error_ns(self) -> int:
        """The error of times that are computed now."""
        assert self._best is not None, "as above"
        return self._best.error_ns(self._now())

    def _take_late(self) -> bool:
        """Uses an anchor that completed late: better than none, or than a very old one."""
        if self._late is None or not self._late[0].query():
            return False
        (event, before_ns), self._late = self._late, None
        return self._adopt(Anchor(event, before_ns, self._now()))

    def _try_anew(self) -> bool:
        if self._stream is None:
            self._stream = self._gpu.own_stream()
        event, before_ns = self._gpu.event(), self._now()
        event.record(self._stream)
        for _ in range(LOOKS):
            if event.query():
                return self._adopt(Anchor(event, before_ns, self._now()))
        self._late = self._late or (event, before_ns)
        return False

    def _adopt(self, new: Anchor) -> bool:
        best, now_ns = self._best, new.after_ns
        if best is not None and best.error_ns(now_ns) < new.error_ns(now_ns):
            return False
        self._best = new
        return True


def in_ns(milliseconds: float) -> int:
    return round(milliseconds * 1e6)
