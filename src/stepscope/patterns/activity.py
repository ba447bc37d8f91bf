"""What a profiler recorded of one rank: the input of patterns, whoever recorded it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stepscope.window import Ints, Strings, Table

_NOTHING = np.zeros(0, np.int64)
NO_EVENTS = Table({
    "start_ns": _NOTHING, "duration_ns": _NOTHING, "name": Strings(_NOTHING.astype(np.int32), ()),
})  # fmt: skip


@dataclass(frozen=True)
class Span:
    """A window of time."""

    start_ns: int
    end_ns: int

    def later(self, base_ns: int) -> Span:
        return Span(self.start_ns + base_ns, self.end_ns + base_ns)

    @property
    def length_ns(self) -> int:
        return max(self.end_ns - self.start_ns, 0)


@dataclass(frozen=True)
class Activity:
    """Tables of events with `start_ns`, `duration_ns`, `name`, in order of start, longest first."""

    kernels: Table = NO_EVENTS
    """Kernels of a device that compute."""
    copies: Table = NO_EVENTS
    """Copies and memsets of a device."""
    collectives: Table = NO_EVENTS
    """Communication: kernels of a device, and what the host's threads for it execute."""
    operators: tuple[Table, ...] = ()
    """Operators of the training thread, and of each thread that it lets work for it."""
    python: Table = NO_EVENTS
    """Python functions of the training thread; else its annotations."""

    def within(self, span: Span) -> Activity:
        """Only events that are at least partly within a window."""
        return Activity(
            _within(self.kernels, span), _within(self.copies, span),
            _within(self.collectives, span),
            tuple(_within(table, span) for table in self.operators), _within(self.python, span),
        )  # fmt: skip

    def later(self, base_ns: int) -> Activity:
        """The same events, at times since another base."""
        return Activity(
            _later(self.kernels, base_ns), _later(self.copies, base_ns),
            _later(self.collectives, base_ns),
            tuple(_later(table, base_ns) for table in self.operators), _later(self.python, base_ns),
        )  # fmt: skip

    @property
    def has_device(self) -> bool:
        return len(self.kernels) > 0 or len(self.copies) > 0


def _later(table: Table, base_ns: int) -> Table:
    return table.with_column("start_ns", table.ints("start_ns") + base_ns)


def _within(table: Table, span: Span) -> Table:
    start = table.ints("start_ns")
    return table.take((start < span.end_ns) & (start + table.ints("duration_ns") > span.start_ns))


@dataclass(frozen=True)
class Lane:
    """Events of one class, in order of start; `of` is the number of the function of each."""

    start_ns: Ints = field(default_factory=lambda: _NOTHING)
    end_ns: Ints = field(default_factory=lambda: _NOTHING)
    of: Ints = field(default_factory=lambda: _NOTHING)


def joined_lanes(lanes: list[Lane]) -> Lane:
    """One lane of several, in order of start."""
    lanes = [lane for lane in lanes if lane.start_ns.size]
    if len(lanes) < 2:
        return lanes[0] if lanes else Lane()
    start = np.concatenate([lane.start_ns for lane in lanes])
    order = np.argsort(start, kind="stable")
    end = np.concatenate([lane.end_ns for lane in lanes])
    of = np.concatenate([lane.of for lane in lanes])
    return Lane(start[order], end[order], of[order])
