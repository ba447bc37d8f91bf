"""The parts of a GPU's runtime that we use, as protocols, so that tests need no GPU."""

from __future__ import annotations

from typing import Any, Protocol


class Event(Protocol):
    """A position in a stream whose time the device records, like `torch.cuda.Event`."""

    def record(self, stream: Any) -> None: ...

    def query(self) -> bool:
        """Whether the device has reached it; never waits."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to the other; the device must have reached both."""


class Gpu(Protocol):
    """The device that this process computes on."""

    def is_in_use(self) -> bool:
        """Whether the script has used it; we never initialise it ourselves."""

    def is_off_limits(self) -> bool:
        """Whether a CUDA graph is being captured or code traced: events must not be used then."""

    def stream(self) -> Any:
        """The current stream."""

    def own_stream(self) -> Any:
        """A stream in which no other work is queued."""

    def event(self) -> Event: ...
