"""Unions of time intervals, for all ranks at once.

Every rank gets its own stretch of one long axis, so that one sorted array serves them all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.window import Ints, Mask

AXIS_LIMIT = 2**62
"""Beyond it positions on the common axis would leave int64."""


@dataclass(frozen=True)
class Axis:
    """Puts (rank, time) on one line: rank i owns [i * span, (i + 1) * span)."""

    origin_ns: int
    span_ns: int

    def at(self, rank: Ints, time_ns: Ints) -> Ints:
        place = time_ns - self.origin_ns
        np.clip(place, 0, self.span_ns - 1, out=place)
        return place + rank * self.span_ns


def axis_over(ranks: int, *times_ns: Ints) -> Axis | None:
    """An axis that holds the given times, or None where it would overflow."""
    known = [times for times in times_ns if times.size]
    if not known:
        return Axis(0, 1)
    low = min(int(times.min()) for times in known)
    high = max(int(times.max()) for times in known)
    span = high - low + 2
    return Axis(low, span) if span * max(ranks, 1) < AXIS_LIMIT else None


@dataclass(frozen=True)
class Union:
    """Disjoint sorted intervals with the length covered before each of them."""

    start: Ints
    end: Ints
    before: Ints

    def covered(self, position: Ints) -> Ints:
        """How much of the axis left of each position is covered."""
        if not self.start.size:
            return np.zeros_like(position)
        at = np.searchsorted(self.start, position, side="right") - 1
        index = np.maximum(at, 0)
        partial = np.clip(position - self.start[index], 0, self.end[index] - self.start[index])
        return np.where(at >= 0, self.before[index] + partial, 0)

    def holds(self, position: Ints) -> Mask:
        """Which positions lie inside an interval."""
        if not self.start.size:
            return np.zeros(position.shape, np.bool_)
        at = np.searchsorted(self.start, position, side="right") - 1
        return (at >= 0) & (position < self.end[np.maximum(at, 0)])


def union(start: Ints, end: Ints) -> Union:
    """Merges intervals that touch or overlap."""
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if not (start[1:] >= start[:-1]).all():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    if not start.size:
        return Union(start, end, start)
    reach = np.maximum.accumulate(end)
    opens = np.concatenate(([True], start[1:] > reach[:-1]))
    first = np.flatnonzero(opens)
    last = np.concatenate((first[1:] - 1, [start.size - 1]))
    start, end = start[first], reach[last]
    return Union(start, end, np.concatenate(([0], np.cumsum(end - start)[:-1])))
