"""Who is on the critical path: EROICA, equations 2 and 3."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.patterns.compiled import critical_ns, innermost
from tests.patterns.slowly import (
    Call,
    columns,
    critical_times,
    in_order,
    innermost_at,
)

GEMM, MEMCPY, ALL_REDUCE, LOAD, FORWARD = range(5)

calls = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 15), st.integers(0, 3)), max_size=12
).map(lambda some: in_order([(start, start + length, of) for start, length, of in some]))


def times(classes: list[list[Call]], functions: int, start: int, end: int) -> list[int]:
    found = critical_ns(tuple(map(columns, classes)), functions, start, end)
    return [int(one) for one in np.frombuffer(found, np.int64)]


def test_the_critical_path_of_figure_9() -> None:
    """A function below counts where nothing above it runs."""
    kernels = [(10, 30, GEMM), (60, 80, GEMM)]
    copies = [(25, 40, MEMCPY)]
    collectives = [(35, 65, ALL_REDUCE)]
    python = [(0, 12, LOAD), (12, 100, FORWARD)]
    found = times([kernels, copies, collectives, python], 5, 0, 100)
    assert found == [40, 10, 20, 10, 20]
    assert sum(found) == 100  # something is on the path at any time


def test_functions_of_one_class_share_the_path_and_their_own_overlaps_count_once() -> None:
    streams = [(0, 10, GEMM), (4, 12, MEMCPY), (6, 14, GEMM)]
    assert times([streams], 2, 0, 20) == [14, 8]


def test_only_the_window_counts() -> None:
    assert times([[(0, 100, 0)], [(50, 200, 1)]], 2, 20, 120) == [80, 20]


@settings(max_examples=300, deadline=None)
@given(st.lists(calls, min_size=1, max_size=4), st.integers(-5, 20), st.integers(20, 60))
def test_times_are_those_of_the_definition(classes: list[list[Call]], start: int, end: int) -> None:
    assert times(classes, 4, start, end) == critical_times(classes, 4, start, end)


@settings(max_examples=300, deadline=None)
@given(calls)
def test_the_innermost_call_is_the_last_one_that_runs(some: list[Call]) -> None:
    found, stacks = innermost(*columns(some))
    segments = np.frombuffer(found, np.int64).reshape(-1, 3).tolist()
    of = np.frombuffer(stacks, np.int64).reshape(-1, 3).tolist()
    for time in range(60):
        inside = [of[stack][1] for start, end, stack in segments if start <= time < end]
        at = innermost_at(some, time)
        assert inside == ([] if at is None else [some[at][2]])
    assert sum(number for _, _, number in of) == len(some)
    assert all(parent < at for at, (parent, _, _) in enumerate(of))


def test_a_stack_is_known_by_all_its_callers() -> None:
    a, b, read = range(3)
    nested = [(0, 10, a), (1, 4, read), (5, 8, read), (20, 30, b), (21, 29, read)]
    found, stacks = innermost(*columns(nested))
    assert np.frombuffer(stacks, np.int64).reshape(-1, 3).tolist() == [
        [-1, a, 1], [0, read, 2], [-1, b, 1], [2, read, 1],
    ]  # fmt: skip
    assert np.frombuffer(found, np.int64).reshape(-1, 3)[:4].tolist() == [
        [0, 1, 0], [1, 4, 1], [4, 5, 0], [5, 8, 1],
    ]  # fmt: skip


@pytest.mark.parametrize("wrong", [[(5, 6, 0), (4, 9, 0)], [(5, 4, 0)]])
def test_events_out_of_order_are_refused(wrong: list[Call]) -> None:
    with pytest.raises(ValueError, match="order of time"):
        innermost(*columns(wrong))
    with pytest.raises(ValueError, match="order of time"):
        critical_ns((columns(wrong),), 1, 0, 10)


def test_columns_that_do_not_fit_are_refused() -> None:
    start, end, of = columns([(0, 1, 7)])
    with pytest.raises(ValueError, match="unknown function"):
        critical_ns(((start, end, of),), 7, 0, 10)
    with pytest.raises(ValueError, match="differ in length"):
        critical_ns(((start, end, b""),), 7, 0, 10)
    with pytest.raises(ValueError, match="half a number"):
        innermost(start[1:], end, of)
