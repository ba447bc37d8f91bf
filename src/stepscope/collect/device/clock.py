"""Where a device's events lie on the host's clock.

An anchor is an event in a stream of ours, between two looks at the host's clock: before it was
recorded, and once it was seen done. So the device came by in between, and everything else is placed
by its distance from the anchor, which the device measures itself.

Error: half the time between the two looks, plus what the clocks drift apart from the anchor on,
plus 0.5 µs, the resolution of `cudaEventElapsedTime`; `error_ns` says how much that is. Where all
streams share one queue (CUDA_DEVICE_MAX_CONNECTIONS=1, as Megatron sets it) an anchor waits behind
the work that was queued before; then the last good one stays in use, or, as long as there is none,
a wide one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from stepscope.collect.device.gpu import Event, Gpu

RENEW_NS = 1_000_000_000
"""Older anchors are replaced: elapsed time is a 32-bit float of milliseconds, which at two seconds
steps by 0.1 µs, and at a minute by 4 µs."""
RETRY_NS = 100_000_000
"""Between two attempts: one costs some ten calls of CUDA."""
LOOKS = 10
"""How often a new anchor is asked for at once, about 1 µs each; then it is left for later."""
DRIFT = 1e-4
"""Two crystals of ordinary grade, each off by 50 parts in a million, the one up, the other down."""
RESOLUTION_NS = 500
"""Of `cudaEventElapsedTime`, as CUDA's documentation has it."""


@dataclass(frozen=True)
class Anchor:
    """An event, and the host's times between which the device came by."""

    event: Event
    before_ns: int
    after_ns: int

    @property
    def middle_ns(self) -> int:
        return (self.before_ns + self.after_ns) // 2

    def error_ns(self, at_ns: int) -> int:
        """How wrong a time can be that is placed by this anchor."""
        drifted = int(abs(at_ns - self.middle_ns) * DRIFT)
        return (self.after_ns - self.before_ns) // 2 + drifted + RESOLUTION_NS


class DeviceClock:
    """Keeps the best anchor there is. On the training thread only."""

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
        """Renews the anchor where it is time to; whether there is a new one."""
        now_ns = self._now()
        if self._best is not None and now_ns - self._best.after_ns < RENEW_NS:
            return False
        if self._tried_ns is not None and now_ns - self._tried_ns < RETRY_NS:
            return False
        self._tried_ns = now_ns
        return self._take_late() or self._try_anew()

    def place_ns(self, event: Event, recorded_ns: int) -> int:
        """The host's time at which the device came by an event that is done.

        Args:
            recorded_ns: when the host recorded it: tells which of two events is the later one.
        """
        anchor = self._best
        assert anchor is not None, "nothing is placed before there is an anchor"
        if recorded_ns >= anchor.before_ns:
            return anchor.middle_ns + in_ns(anchor.event.elapsed_time(event))
        return anchor.middle_ns - in_ns(event.elapsed_time(anchor.event))

    def error_ns(self) -> int:
        """Of what is placed now."""
        assert self._best is not None, "as above"
        return self._best.error_ns(self._now())

    def _take_late(self) -> bool:
        """An anchor that was not done in time is better than none, and than a very old one."""
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
