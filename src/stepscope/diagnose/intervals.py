"""Unions of time intervals, for all ranks at once.

Every rank gets its own stretch of one long axis, so that one sorted array serves them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.window import Ints, Mask, distinct

AXIS_LIMIT = 2**62
"""Beyond it positions on the common axis would leave int64."""
BLOCK = 2**19
"""Rows of a block: what is needed in between fits a processor's cache, 4 MiB a column."""


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
    return _union_of(start[first], reach[last])


def _union_of(start: Ints, end: Ints) -> Union:
    """Of intervals that are disjoint and sorted."""
    return Union(start, end, np.cumsum(end - start) - (end - start))


def union_of_rows(
    axis: Axis, rank: Ints, start_ns: Ints, end_ns: Ints, rows: Mask, beside: Union | None = None
) -> Union:
    """Merges the chosen rows' intervals, and those of a union on the same axis if there is one.

    Where rows stand in the order of ranks, as in tables that were read, some ranks are done at a
    time, which needs a tenth of the memory.
    """
    known = beside or Union(*(np.zeros(0, np.int64) for _ in range(3)))
    parts: list[tuple[Ints, Ints]] = []
    for part, first, stop in _blocks(axis, rank):
        own = rows[part]
        at = slice(*np.searchsorted(known.start, (first, stop)))
        place = rank[part][own]
        one = union(
            np.concatenate((known.start[at], axis.at(place, start_ns[part][own]))),
            np.concatenate((known.end[at], axis.at(place, end_ns[part][own]))),
        )
        parts.append((one.start, one.end))
    start, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _union_of(start, end)


def _blocks(axis: Axis, rank: Ints) -> Iterator[tuple[slice, int, int]]:
    """Rows of whole ranks, and the part of the axis that is theirs; together all of it."""
    cuts = rank[BLOCK::BLOCK] if (rank[1:] >= rank[:-1]).all() else rank[:0]
    ranks = distinct(cuts)
    rows = [0, *np.searchsorted(rank, ranks).tolist(), rank.size]
    places = [0, *(ranks * axis.span_ns).tolist(), AXIS_LIMIT]
    for at in range(len(rows) - 1):
        yield slice(rows[at], rows[at + 1]), places[at], places[at + 1]
