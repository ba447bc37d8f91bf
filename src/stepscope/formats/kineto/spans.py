"""Time intervals of one rank: which are outermost, and how much of a stretch they cover."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.window import Ints, Mask, Table


@dataclass(frozen=True)
class Cover:
    """Disjoint sorted intervals, with the length covered before each of them."""

    start: Ints
    end: Ints
    before: Ints

    def until(self, time: Ints) -> Ints:
        """How much is covered before each moment."""
        if not self.start.size:
            return np.zeros_like(time)
        at = np.searchsorted(self.start, time, side="right") - 1
        index = np.maximum(at, 0)
        inside = np.clip(time - self.start[index], 0, self.end[index] - self.start[index])
        return np.where(at >= 0, self.before[index] + inside, 0)

    def within(self, start: Ints, end: Ints) -> Ints:
        return self.until(end) - self.until(start)


def cover(start: Ints, end: Ints) -> Cover:
    """The union of intervals that may overlap."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    if not start.size:
        return Cover(start, end, start)
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate(([True], start[1:] > reach[:-1])))
    start, end = start[first], reach[np.append(first[1:] - 1, start.size - 1)]
    return Cover(start, end, np.concatenate(([0], np.cumsum(end - start)[:-1])))


def ends(table: Table) -> Ints:
    return table.ints("start_ns") + table.ints("duration_ns")


def outermost(table: Table) -> Mask:
    """Rows, in order of time, that no other row of their thread contains."""
    thread, start, end = table.ints("thread"), table.ints("start_ns"), ends(table)
    order = np.argsort(thread, kind="stable")
    keep = np.zeros(len(table), np.bool_)
    for rows in np.split(order, np.flatnonzero(np.diff(thread[order])) + 1):
        reach = np.maximum.accumulate(end[rows])
        keep[rows[:1]] = True
        keep[rows[1:]] = start[rows[1:]] >= reach[:-1]
    return keep


def named(table: Table, *prefixes: str) -> Mask:
    """Rows whose name begins with one of the prefixes."""
    names = table.strings("name")
    wanted = np.array([value.startswith(prefixes) for value in names.values] or [False], np.bool_)
    return wanted[names.codes]


def latest_before(times: Ints, moments: Ints) -> Ints:
    """Position in sorted `times` of the last one not after each moment, -1 where none is."""
    return np.searchsorted(times, moments, side="right") - 1
