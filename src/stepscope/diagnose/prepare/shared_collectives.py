"""Which clocks share which collectives, and when these ended by each clock.

A job has thousands of clocks and a hundred thousand collectives, and few clocks take part in each
of them, so the data is sparse. Collectives with the same clocks are of one kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.prepare.matching import Matched, arrivals
from stepscope.window import Ints, Mask, stable_order

_SPREAD = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9)
"""Odd 64-bit constants (Steele, Lea and Flood, Fast splittable pseudorandom number generators,
2014): sums of numbers multiplied by them identify sets of clocks."""


@dataclass(frozen=True)
class Both:
    """When each of two clocks says that the collectives they share began and ended."""

    own_end_ns: Ints
    their_end_ns: Ints
    own_arrive_ns: Ints
    their_arrive_ns: Ints

    @property
    def moved_ns(self) -> Ints:
        """How tight each bound is. The side that arrived last did not wait, so the shorter stay is
        close to the time that the data moved; within that time the two sides may have left
        apart."""
        own, theirs = self.own_end_ns - self.own_arrive_ns, self.their_end_ns - self.their_arrive_ns
        return np.asarray(np.minimum(own, theirs))


@dataclass(frozen=True)
class SharedCollectives:
    """One entry per collective and clock that took part, collective by collective."""

    clocks: int
    operator: Ints
    clock: Ints
    end_ns: Ints
    """The first end by this clock."""
    arrive_ns: Ints
    """The last arrival by this clock."""
    members: Ints
    """How many members go by this clock."""

    @cached_property
    def origin_ns(self) -> int:
        """The first time at which a collective had ended by all clocks."""
        return int(np.maximum.reduceat(self.end_ns, self._bounds[:-1]).min())

    def shared_with(self, clock: int) -> Ints:
        """How many collectives each clock shares with this one (for itself: all that it has)."""
        count = np.zeros(self.clocks, np.int64)
        for kind in self._kinds_of[clock]:
            operator, often = self._kinds[kind]
            count[self.clock[self._bounds[operator] : self._bounds[operator + 1]]] += often
        return count

    def both(self, clock: int, other: int) -> Both:
        """The collectives that two clocks share, by either clock."""
        own, theirs = self._of(clock), self._of(other)
        at = np.searchsorted(self.operator[theirs], self.operator[own])
        theirs = theirs[np.minimum(at, len(theirs) - 1)]
        both: Mask = self.operator[theirs] == self.operator[own]
        own, theirs = own[both], theirs[both]
        return Both(
            self.end_ns[own], self.end_ns[theirs], self.arrive_ns[own], self.arrive_ns[theirs]
        )

    def _of(self, clock: int) -> Ints:
        order, bounds = self._by_clock
        return order[bounds[clock] : bounds[clock + 1]]

    @cached_property
    def _by_clock(self) -> tuple[Ints, Ints]:
        return _grouped(self.clock, self.clocks)

    @cached_property
    def _bounds(self) -> Ints:
        """The entry at which each collective begins, and the number of entries at the end."""
        return np.append(np.flatnonzero(np.diff(self.operator, prepend=-1)), self.operator.size)

    @cached_property
    def _kinds(self) -> list[tuple[int, int]]:
        """One collective of each kind, and the number of collectives of that kind."""
        mixed = (self.clock + 1).astype(np.uint64) * np.uint64(_SPREAD[0])
        mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(_SPREAD[1])
        mixed ^= mixed >> np.uint64(29)
        _, first, count = np.unique(
            np.add.reduceat(mixed, self._bounds[:-1]), return_index=True, return_counts=True
        )
        return list(zip(first.tolist(), count.tolist(), strict=True))

    @cached_property
    def _kinds_of(self) -> list[list[int]]:
        """The kinds in which each clock takes part."""
        found: list[list[int]] = [[] for _ in range(self.clocks)]
        for kind, (operator, _) in enumerate(self._kinds):
            for clock in self.clock[self._bounds[operator] : self._bounds[operator + 1]].tolist():
                found[clock].append(kind)
        return found


def shared_collectives(matched: Matched, clock_of: Ints) -> SharedCollectives:
    """The collectives of a table in which all rows ended; `clock_of` is the clock of each rank."""
    order, lengths = matched.order, np.diff(matched.bounds)
    clocks = int(clock_of.max(initial=-1)) + 1
    cell = np.repeat(np.arange(lengths.size) * clocks, lengths)
    cell += clock_of[matched.table.ints("rank")[order]]
    again = stable_order(cell)
    cell, order = cell[again], order[again]
    begins = np.flatnonzero(np.diff(cell, prepend=-1))
    return SharedCollectives(
        clocks, cell[begins] // clocks, cell[begins] % clocks,
        np.minimum.reduceat(matched.table.ints("end_ns")[order], begins),
        np.maximum.reduceat(arrivals(matched.table)[order], begins),
        np.diff(np.append(begins, cell.size)),
    )  # fmt: skip


def _grouped(values: Ints, size: int) -> tuple[Ints, Ints]:
    """An order that groups equal values, and the index at which each group begins."""
    count = np.bincount(values, minlength=size)
    return stable_order(values), np.concatenate(([0], np.cumsum(count)))
