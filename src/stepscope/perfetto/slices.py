"""The contents of tracks: named slices of time, or the values of a counter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from stepscope.window import NULL, Floats, Ints, Mask, Strings

LATEST_NS = 1 << 62
"""In the year 2116: sums of two times still fit int64."""


@dataclass(frozen=True)
class Slices:
    """Slices from `start_ns` to `end_ns`; `details` are shown for the selected one."""

    start_ns: Ints
    end_ns: Ints
    names: Strings
    details: Mapping[str, Ints | Strings] = field(default_factory=dict)
    flow: Ints | None = None
    """Slices with the same number are connected by arrows, in order of their start."""

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, rows: Ints | Mask) -> Slices:
        return Slices(
            self.start_ns[rows],
            self.end_ns[rows],
            self.names.take(rows),
            {name: column.take(rows) if isinstance(column, Strings) else column[rows]
             for name, column in self.details.items()},
            None if self.flow is None else self.flow[rows],
        )  # fmt: skip

    def after(self, time_ns: int) -> Slices:
        """The parts of the slices after a time."""
        if not len(self) or int(self.start_ns.min()) >= time_ns:
            return self
        late = self.take(self.end_ns > time_ns)
        return replace(late, start_ns=np.maximum(late.start_ns, time_ns))

    def drawable(self) -> Slices:
        """Drops slices with impossible times: before 1970, or ends before starts."""
        start, end = self.start_ns, self.end_ns
        possible = (start >= 0) & (end >= start) & (end < LATEST_NS)
        return self if possible.all() else self.take(possible)


@dataclass(frozen=True)
class Track:
    """A track of a process; overlapping slices are drawn on several rows."""

    name: str
    slices: Slices


@dataclass(frozen=True)
class Counter:
    """A value over time."""

    name: str
    unit: str
    time_ns: Ints
    value: Floats

    def drawable(self) -> Counter:
        """Drops rows without a valid time or a finite value."""
        time = self.time_ns
        keep = (time >= 0) & (time < LATEST_NS) & np.isfinite(self.value)
        return Counter(self.name, self.unit, time[keep], self.value[keep])


@dataclass(frozen=True)
class Group:
    """A group of tracks: those of a rank, which Perfetto shows as a process, or others.

    `path` is unique among all groups of the job, in this file and in files joined to it.
    """

    path: str
    name: str
    sequence: int
    """Number of its packet sequence, from 1."""
    pid: int | None = None
    order: int = 0
    labels: tuple[str, ...] = ()


def ends(start_ns: Ints, duration_ns: Ints) -> Ints:
    """The end of each row; NULL if start or duration is out of range."""
    known = (
        (start_ns >= 0) & (start_ns < LATEST_NS) & (duration_ns >= 0) & (duration_ns < LATEST_NS)
    )
    return np.where(known, np.where(known, start_ns, 0) + np.where(known, duration_ns, 0), NULL)
