"""Phases and step events, put together from moments on the sender's thread.

forward-compute has no hooks of its own: it runs from the batch in hand, or from the end of the
previous backward or optimizer step, to the start of backward.
"""

from __future__ import annotations

from collections.abc import Callable

from stepscope.trace.names import BACKWARD, DATA_LOAD, FORWARD, OPTIMIZER
from stepscope.wire.records import UNKNOWN, EventKind, RecordKind

Moment = tuple[int, int, int]
"""(time, the thread's CPU time, time blocked in communication so far), each in ns."""


class Phases:
    """Turns what happened on the training thread, told in order, into records.

    Args:
        name: gives the id of a string.
        record: takes kind, flags, ordinal of the step, and the record's fields.
    """

    def __init__(self, name: Callable[[str], int], record: Callable[..., None]) -> None:
        self._name = name
        self._record = record
        self._forward_from: Moment | None = None
        self._backward_end: Moment | None = None
        self._microbatch = 0

    def loaded(self, ordinal: int, loader: str, start: Moment, end: Moment) -> None:
        """A loader gave a batch: forward begins."""
        self.phase(ordinal, DATA_LOAD, start, end)
        self._event(EventKind.LOAD, ordinal, loader, start, end)
        self._forward_from = end

    def backward(self, ordinal: int, start: Moment, end: Moment) -> None:
        if self._forward_from is not None:
            self.phase(ordinal, FORWARD, self._forward_from, start, self._microbatch)
        self.phase(ordinal, BACKWARD, start, end, self._microbatch)
        self._microbatch += 1
        self._forward_from = self._backward_end = end

    def optimizer(self, ordinal: int, optimizer: str, start: Moment, end: Moment) -> None:
        """An optimizer stepped: the next step begins.

        Where it ran forward and backward itself, in a closure (Lightning always does), its phase
        is what came after the last backward: no time belongs to two phases.
        """
        inside = self._backward_end
        begin = inside if inside is not None and inside[0] > start[0] else start
        self.phase(ordinal, OPTIMIZER, begin, end)
        self._event(EventKind.OPTIMIZER, ordinal, optimizer, start, end)
        self._microbatch = 0
        self._forward_from = end

    def phase(self, ordinal: int, name: str, start: Moment, end: Moment,
              microbatch: int = UNKNOWN) -> None:  # fmt: skip
        """One finished phase; waiting is what the blocked time grew by."""
        duration, cpu, wait = end[0] - start[0], end[1] - start[1], end[2] - start[2]
        self._record(
            RecordKind.PHASE, 0, ordinal, self._name(name), start[0], duration,
            min(max(wait, 0), duration), cpu, microbatch,
        )  # fmt: skip

    def _event(self, kind: EventKind, ordinal: int, name: str, start: Moment, end: Moment) -> None:
        self._record(RecordKind.EVENT, kind, ordinal, self._name(name), start[0], end[0])
