"""Builds phases and step events from the noted moments, on the sender's thread.

forward-compute has no hook of its own, except for frameworks that run it in a function. It lasts
from when the batch is loaded, or from the end of the previous backward or optimizer step, to the
start of backward.

If both ends of a phase have marks in a stream, the phase gets the device's times, once the device
has passed them. If a mark is missing, the row is lost and counted: host times mixed with device
times would look like steps in which a rank was much faster or slower.
"""

from __future__ import annotations

from collections.abc import Callable

from stepscope.collect.device.marks import Between, Mark, Missed, Place
from stepscope.trace.names import BACKWARD, DATA_LOAD, FORWARD, OPTIMIZER
from stepscope.wire.records import ON_DEVICE, UNKNOWN, EventKind, RecordKind

Moment = tuple[int, int, int, int, Place]
"""(time, the thread's CPU time, time blocked in communication so far, all in ns; number of
operators called so far; the position in a device's stream)."""


class Phases:
    """Turns the events of the training thread, which arrive in order, into records.

    Args:
        name: returns the id of a string.
        record: takes kind, flags, ordinal of the step, and the record's fields.
        on_device: takes a phase whose device times are not known yet.
        lost: called for each phase that will have no row.
    """

    def __init__(
        self,
        name: Callable[[str], int],
        record: Callable[..., None],
        on_device: Callable[[Between], None],
        lost: Callable[[], None],
    ) -> None:
        self._name = name
        self._record = record
        self._on_device = on_device
        self._lost = lost
        self._forward_from: Moment | None = None
        self._backward_end: Moment | None = None
        self._numbers: list[int] = []
        """The microbatches of this step, in the order of their forward passes."""
        self._backwards = 0
        self._has_forwards = False

    def loaded(self, ordinal: int, loader: str, start: Moment, end: Moment) -> None:
        """A loader returned a batch: forward begins."""
        self.phase(ordinal, DATA_LOAD, start, (*end[:4], None))
        self._event(EventKind.LOAD, ordinal, loader, start, end)
        self._forward_from = end

    def forward(
        self, ordinal: int, start: Moment, end: Moment, microbatch: int | None = None
    ) -> None:
        """A framework ran the forward pass of a microbatch in a function of its own.

        The time to load a batch within that function is not part of the phase. If the framework
        does not say which microbatch it was, passes are counted.
        """
        self._has_forwards = True
        loaded = self._forward_from
        begin = loaded if loaded is not None and loaded[0] > start[0] else start
        self.phase(ordinal, FORWARD, begin, end, self._next_forward(microbatch))

    def backward(
        self, ordinal: int, start: Moment, end: Moment, waits_from: Place = None,
        microbatch: int | None = None, name: str = BACKWARD,
    ) -> None:  # fmt: skip
        """A backward pass; the device waits for other ranks' gradients from `waits_from` on."""
        if self._forward_from is not None and not self._has_forwards:
            self.phase(ordinal, FORWARD, self._forward_from, start, self._next_forward(None))
        if microbatch is None:
            microbatch = self._next_backward()
        self.phase(ordinal, name, start, end, microbatch, waits_from)
        self._forward_from = self._backward_end = end

    def _next_forward(self, microbatch: int | None) -> int:
        self._numbers.append(len(self._numbers) if microbatch is None else microbatch)
        return self._numbers[-1]

    def _next_backward(self) -> int:
        """Microbatches go backward in the order in which they went forward."""
        at, self._backwards = self._backwards, self._backwards + 1
        return self._numbers[at] if at < len(self._numbers) else at

    def optimizer(self, ordinal: int, optimizer: str, start: Moment, end: Moment) -> None:
        """An optimizer stepped: the next step begins.

        If it ran forward and backward itself, in a closure (Lightning always does), its phase is
        the part after the last backward, so that no time belongs to two phases.
        """
        inside = self._backward_end
        begin = inside if inside is not None and inside[0] > start[0] else start
        self.phase(ordinal, OPTIMIZER, begin, end)
        self._event(EventKind.OPTIMIZER, ordinal, optimizer, start, end)
        self._numbers.clear()
        self._backwards = 0
        self._forward_from = end

    def part(self, ordinal: int, name: str, start: Moment, end: Moment) -> None:
        """A part of the current forward pass."""
        self.phase(ordinal, name, start, end, len(self._numbers))

    def phase(self, ordinal: int, name: str, start: Moment, end: Moment,
              microbatch: int = UNKNOWN, waits_from: Place = None) -> None:  # fmt: skip
        """A finished phase. The host waited as long as the blocked time grew meanwhile."""
        first, last = start[4], end[4]
        if isinstance(first, Mark) and isinstance(last, Mark):
            waits = waits_from if isinstance(waits_from, Mark) else None
            self._timed_by_device(ordinal, name, start, end, microbatch, first, last, waits)
        elif isinstance(first, Missed) or isinstance(last, Missed):
            self._lost()
        else:
            duration, cpu, wait = end[0] - start[0], end[1] - start[1], end[2] - start[2]
            self._record(
                RecordKind.PHASE, 0, ordinal, self._name(name), start[0], duration,
                min(max(wait, 0), duration), cpu, microbatch,
            )  # fmt: skip

    def _timed_by_device(self, ordinal: int, name: str, start: Moment, end: Moment,
                         microbatch: int, first: Mark, last: Mark,
                         waits_from: Mark | None) -> None:  # fmt: skip
        """If operators were called in between, the device may have waited for an unknown time."""
        unmarked = 0 if end[3] == start[3] else UNKNOWN
        id, cpu = self._name(name), end[1] - start[1]

        def tell(start_ns: int, duration_ns: int, wait_ns: int | None) -> None:
            wait = unmarked if wait_ns is None else min(wait_ns, duration_ns)
            self._record(
                RecordKind.PHASE, ON_DEVICE, ordinal, id, start_ns, duration_ns, wait, cpu,
                microbatch, start[0],
            )  # fmt: skip

        self._on_device(Between(first, last, start[0], tell, waits_from))

    def _event(self, kind: EventKind, ordinal: int, name: str, start: Moment, end: Moment) -> None:
        self._record(RecordKind.EVENT, kind, ordinal, self._name(name), start[0], end[0])
