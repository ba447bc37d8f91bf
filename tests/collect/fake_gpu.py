"""A GPU that exists only as times: streams that are busy until some moment, and events in them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

LATENCY_NS = 5_000
"""From the call to a device with nothing to do."""


@dataclass
class FakeStream:
    gpu: FakeGpu
    busy_until_ns: int = 0

    def launch(self, duration_ns: int) -> None:
        """Work that the host hands over now."""
        self.busy_until_ns = max(self.busy_until_ns, self.gpu.now_ns + LATENCY_NS) + duration_ns


@dataclass
class FakeEvent:
    """As CUDA's: it cannot be asked for times before the device came by."""

    gpu: FakeGpu
    at_ns: int | None = None
    records: int = 0

    def record(self, stream: FakeStream) -> None:
        assert not self.gpu.capturing, "an event of ours in somebody's CUDA graph"
        self.at_ns = max(stream.busy_until_ns, self.gpu.now_ns + LATENCY_NS)
        self.records += 1
        self.gpu.recorded += 1

    def query(self) -> bool:
        assert not self.gpu.capturing, "this would invalidate the capture"
        assert self.at_ns is not None
        self.gpu.now_ns += self.gpu.query_ns
        return self.gpu.now_ns >= self.at_ns

    def elapsed_time(self, end_event: Any) -> float:
        assert self.at_ns is not None and end_event.at_ns is not None
        last_ns = max(self.at_ns, end_event.at_ns)
        if self.gpu.now_ns < last_ns:
            raise RuntimeError("device not ready")
        milliseconds = (end_event.at_ns - self.at_ns) * self.gpu.rate / 1e6
        (rounded,) = struct.unpack("f", struct.pack("f", milliseconds))
        return float(rounded)


@dataclass
class FakeGpu:
    now_ns: int = 1_000_000_000
    """The host's clock, which only tests and calls of CUDA move."""
    query_ns: int = 1_000
    rate: float = 1.0
    """Of the device's clock against the host's."""
    in_use: bool = True
    capturing: bool = False
    """As CUDA sees it: any touch of an event is a fault then."""
    off_limits: bool = False
    """As `is_off_limits` says it."""
    events: list[FakeEvent] = field(default_factory=list)
    recorded: int = 0
    one_queue: bool = False
    """All streams share one queue, as with CUDA_DEVICE_MAX_CONNECTIONS=1."""

    def __post_init__(self) -> None:
        self.current = FakeStream(self)
        self._own = FakeStream(self)

    def now(self) -> int:
        return self.now_ns

    def is_in_use(self) -> bool:
        return self.in_use

    def is_off_limits(self) -> bool:
        return self.off_limits

    def stream(self) -> FakeStream:
        return self.current

    def own_stream(self) -> FakeStream:
        return self.current if self.one_queue else self._own

    def event(self) -> FakeEvent:
        self.events.append(FakeEvent(self))
        return self.events[-1]
