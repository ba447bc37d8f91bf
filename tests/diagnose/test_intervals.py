"""Unions of intervals, some ranks at a time or all at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stepscope.diagnose.numeric import intervals
from stepscope.diagnose.numeric.intervals import Axis, Spans, axis_over, union_of_rows
from stepscope.window import Ints, Mask, Table, Union, union

RANKS = 40


def row_of(rank: Ints) -> Ints:
    """Every third rank is on the grid."""
    return np.where(rank % 3 == 0, rank // 3, -1)


def some_rows(count: int, ordered: bool) -> tuple[Ints, Ints, Ints]:
    dice = np.random.default_rng(count)
    rank = dice.integers(0, 3 * RANKS, count)
    start = dice.integers(10**6, 2 * 10**6, count)
    return np.sort(rank) if ordered else rank, start, start + dice.integers(-10, 3000, count)


def spans_of(
    rank: Ints, start: Ints, end: Ints, counts: Mask | None = None
) -> tuple[Table, Callable[[Table], Spans]]:
    known = np.ones(start.size, np.bool_) if counts is None else counts
    table = Table({"rank": rank, "start": start, "end": end, "counts": known})
    return table, lambda part: (part.ints("start"), part.ints("end"), part.mask("counts"))


def same(one: Union, other: Union) -> bool:
    return all(np.array_equal(vars(one)[name], vars(other)[name]) for name in vars(other))


def at_once(axis: Axis, rank: Ints, start: Ints, end: Ints) -> Union:
    row = row_of(rank)
    return union(axis.at(row, start)[row >= 0], axis.at(row, end)[row >= 0])


@pytest.mark.parametrize(("count", "ordered"), [(5000, True), (5000, False), (3, True), (0, True)])
def test_blocks_of_ranks_change_nothing(
    count: int, ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intervals, "BLOCK", 500)
    rank, start, end = some_rows(count, ordered)
    axis = axis_over(RANKS, start, end)
    assert axis is not None
    whole = at_once(axis, rank, start, end)
    assert same(union_of_rows(axis, row_of, *spans_of(rank, start, end)), whole)


def test_another_union_may_lie_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "BLOCK", 500)
    rank, start, end = some_rows(4000, True)
    axis = axis_over(RANKS, start, end)
    assert axis is not None
    even = rank % 2 == 0
    beside = at_once(axis, rank[even], start[even], end[even])
    merged = union_of_rows(axis, row_of, *spans_of(rank, start, end, ~even), beside)
    assert same(merged, at_once(axis, rank, start, end))
