"""Unions of time intervals, for all ranks at once.

Every rank has its own section of one long axis, so that one sorted array holds all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.window import Ints, Mask, Table, Union, distinct, gathered, union

AXIS_LIMIT = 2**62
"""Positions on the common axis above this would overflow int64."""
BLOCK = 2**18
"""Rows that are processed at a time: intermediate results fit a CPU cache, 2 MiB a column."""


@dataclass(frozen=True)
class Axis:
    """Maps (rank, time) to one axis: rank i owns [i * span, (i + 1) * span)."""

    origin_ns: int
    span_ns: int

    def at(self, rank: Ints, time_ns: Ints) -> Ints:
        place = time_ns - self.origin_ns
        np.clip(place, 0, self.span_ns - 1, out=place)
        return place + rank * self.span_ns


def axis_over(ranks: int, *times_ns: Ints) -> Axis | None:
    """An axis that holds the given times, or None if it would overflow."""
    known = [times for times in times_ns if times.size]
    if not known:
        return Axis(0, 1)
    low = min(int(times.min()) for times in known)
    high = max(int(times.max()) for times in known)
    span = high - low + 2
    return Axis(low, span) if span * max(ranks, 1) < AXIS_LIMIT else None


Spans = tuple[Ints, Ints, Mask]
"""Start and end of each row, and which rows count."""


def union_of_rows(
    axis: Axis,
    row_of: Callable[[Ints], Ints],
    table: Table,
    spans: Callable[[Table], Spans],
    beside: Union | None = None,
) -> Union:
    """Merges the intervals of rows of ranks on the grid, and those of a union on the same axis.

    If the rows are ordered by rank, as in tables read from a store, a few ranks are processed at a
    time, which needs a tenth of the memory.

    Args:
        row_of: the row on the grid of each of some ranks; -1 if not on it.
    """
    known = beside or Union(*(np.zeros(0, np.int64) for _ in range(3)))
    parts: list[tuple[Ints, Ints]] = []
    for part, first, stop in _blocks(axis, table.numbers("rank"), row_of):
        some = table.part(part.start, part.stop)
        (start_ns, end_ns, counts), row = spans(some), row_of(some.ints("rank"))
        own = np.flatnonzero(counts & (row >= 0))
        at = slice(*np.searchsorted(known.start, (first, stop)))
        place = gathered(row, own)
        merged = union(
            np.concatenate((known.start[at], axis.at(place, gathered(start_ns, own)))),
            np.concatenate((known.end[at], axis.at(place, gathered(end_ns, own)))),
        )
        parts.append((merged.start, merged.end))
    return _joined(parts)


def union_at(axis: Axis, rank: Ints, begin: Ints, duration: Ints, chosen: Mask) -> Union:
    """Merges the chosen intervals of ranks on the grid, whose begins are on the axis already; a few
    ranks at a time, likewise."""
    parts: list[tuple[Ints, Ints]] = []
    for part, _, _ in _blocks(axis, rank, lambda rows: rows):
        own = chosen[part]
        start = begin[part][own]
        merged = union(start, start + duration[part][own])
        parts.append((merged.start, merged.end))
    return _joined(parts)


def _joined(parts: list[tuple[Ints, Ints]]) -> Union:
    """One union of these, which follow one another; takes them out of the list."""
    starts, ends = zip(*parts, strict=True)
    parts.clear()
    start = np.concatenate(starts)
    del starts
    end = np.concatenate(ends)
    del ends
    return Union.of(start, end)


def _blocks(
    axis: Axis, rank: NDArray[Any], row_of: Callable[[Ints], Ints]
) -> Iterator[tuple[slice, int, int]]:
    """Blocks of rows of whole ranks, with their section of the axis; together the whole axis."""
    cuts = rank[BLOCK::BLOCK] if (rank[1:] >= rank[:-1]).all() else rank[:0]
    ranks = distinct(cuts.astype(np.int64))
    places = row_of(ranks)
    ranks, places = ranks[places >= 0], places[places >= 0]
    rows = [0, *np.searchsorted(rank, ranks.astype(rank.dtype)).tolist(), rank.size]
    begins = [0, *(places * axis.span_ns).tolist(), AXIS_LIMIT]
    for at in range(len(rows) - 1):
        yield slice(rows[at], rows[at + 1]), begins[at], begins[at + 1]


def around(spans: Iterable[tuple[int, int] | None]) -> tuple[int, int] | None:
    """From the start of the first to the end of the last, of those that are known."""
    known = [one for one in spans if one is not None]
    return (min(one[0] for one in known), max(one[1] for one in known)) if known else None
