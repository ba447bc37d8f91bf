"""Unions of intervals, and the length that they cover between given positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.window import compiled
from stepscope.window.compiled import is_plain
from stepscope.window.table import Ints, Mask

NEAR = 1 << 14
"""Positions per block: they mostly come in order, so a block touches few intervals (measured)."""


@dataclass(frozen=True)
class Union:
    """Disjoint sorted intervals with the length covered before each of them."""

    start: Ints
    end: Ints
    before: Ints

    @classmethod
    def of(cls, start: Ints, end: Ints) -> Union:
        """Makes a union of intervals that are disjoint and sorted already."""
        length = end - start
        before = np.cumsum(length)
        before -= length
        return cls(start, end, before)

    def covered(self, position: Ints) -> Ints:
        """The covered length left of each position, computed in blocks of positions."""
        if not self.start.size:
            return np.zeros_like(position)
        flat = position.reshape(-1)
        covered = np.empty_like(flat)
        columns = self.start, self.end, self.before, flat, covered
        if compiled.covered is not None and all(map(is_plain, columns)):
            compiled.covered(*columns)
            return covered.reshape(position.shape)
        for first in range(0, flat.size, NEAR):
            some = flat[first : first + NEAR]
            self._about(some)._covered(some, covered[first : first + NEAR])
        return covered.reshape(position.shape)

    def _about(self, position: Ints) -> Union:
        """The intervals around these positions: searching only these takes half the time."""
        low, high = np.searchsorted(self.start, (position.min(), position.max()), side="right")
        part = slice(max(int(low) - 1, 0), max(int(high), 1))
        return Union(self.start[part], self.end[part], self.before[part])

    def _covered(self, position: Ints, out: Ints) -> None:
        at, end = self._ends_before(position)
        beyond = np.concatenate((-end[:1], self.before - self.start))
        np.minimum(position, end.take(at), out=out)
        out += beyond.take(at)

    def _ends_before(self, position: Ints) -> tuple[Ints, Ints]:
        """How many intervals begin before each position, and where the last one of so many ends:
        of none, at the first position."""
        at = count_until(self.start, position)
        return at, np.concatenate((position.min(keepdims=True), self.end))

    def within(self, begin: Ints, end: Ints) -> Ints:
        """The covered length between each begin and its end."""
        return self.covered(end) - self.covered(begin)

    def holds(self, position: Ints) -> Mask:
        """Which positions lie inside an interval."""
        inside = np.zeros(position.shape, np.bool_)
        for first in range(0, position.size if self.start.size else 0, NEAR):
            some = position[first : first + NEAR]
            inside[first : first + NEAR] = self._about(some)._holds(some)
        return inside

    def _holds(self, position: Ints) -> Mask:
        at, end = self._ends_before(position)
        return np.asarray(position < end.take(at))

    def without(self, other: Union) -> Union:
        """The parts of these intervals that lie in none of the others."""
        edges = np.unique(np.concatenate((self.start, self.end, other.start, other.end)))
        begin, end = edges[:-1], edges[1:]
        kept = self.holds(begin) & ~other.holds(begin)
        return union(begin[kept], end[kept])


def count_until(ordered: Ints, limit: Ints) -> Ints:
    """How many of some numbers in order are no larger than each limit. These mostly rise, and then
    the C++ form takes a fifth of numpy's time."""
    if compiled.count_until is None or not all(map(is_plain, (ordered, limit))):
        return np.searchsorted(ordered, limit, side="right")
    count = np.empty_like(limit)
    compiled.count_until(ordered, limit, count)
    return count


def union(start: Ints, end: Ints) -> Union:
    """Merges intervals that touch or overlap; ignores empty ones."""
    merged = _merged(start, end)
    if merged is not None:
        return merged
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if not (start[1:] >= start[:-1]).all():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    if not start.size:
        return Union(start, end, start)
    merged = _merged(start, end)
    if merged is not None:
        return merged
    reach = np.maximum.accumulate(end)
    opens = np.concatenate(([True], start[1:] > reach[:-1]))
    first = np.flatnonzero(opens)
    last = np.concatenate((first[1:] - 1, [start.size - 1]))
    return Union.of(start[first], reach[last])


def _merged(start: Ints, end: Ints) -> Union | None:
    """The same in C++; None if it was not compiled, or if they are not in order."""
    if compiled.merge is None or not (is_plain(start) and is_plain(end)):
        return None
    merged_start, merged_end = np.empty_like(start), np.empty_like(end)
    count = compiled.merge(start, end, merged_start, merged_end)
    if count < 0:
        return None
    both = merged_start[:count], merged_end[:count]
    return Union.of(*both) if 2 * count > start.size else Union.of(*(one.copy() for one in both))
