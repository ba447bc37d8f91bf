"""What we need of a GPU's runtime, so that everything else can be driven without one."""

from __future__ import annotations

from typing import Any, Protocol


class Event(Protocol):
    """A place in a stream that the device notes the time of, as `torch.cuda.Event`."""

    def record(self, stream: Any) -> None: ...

    def query(self) -> bool:
        """Whether the device has come by; never waits."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to that one; both must have been come by."""


class Gpu(Protocol):
    """The device that this process computes on."""

    def is_in_use(self) -> bool:
        """Whether the script has used it; we never begin to."""

    def is_off_limits(self) -> bool:
        """Whether a CUDA graph is captured or code is traced: no event may be touched then."""

    def stream(self) -> Any:
        """The stream on which work goes now."""

    def own_stream(self) -> Any:
        """One that nobody waits in."""

    def event(self) -> Event: ...
