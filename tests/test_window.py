"""Columns of a job, and the rows that are taken of them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from stepscope.window import Ints, Strings, Table, Union, compiled, stable_order, union
from stepscope.window.gathering import FEW_ROWS, gathered


def a_table(rows: int = 6) -> Table:
    return Table({
        "rank": np.arange(rows), "step": np.arange(rows) * 10,
        "phase": Strings.of([f"phase-{row % 2}" for row in range(rows)]),
    })  # fmt: skip


def test_rows_are_taken_by_mask_and_by_place() -> None:
    table = a_table()
    odd = table.take(table.ints("rank") % 2 == 1)
    assert len(odd) == 3
    assert odd.ints("step").tolist() == [10, 30, 50]
    assert odd.take(np.array([2, 0])).ints("step").tolist() == [50, 10]
    assert [odd.strings("phase")[row] for row in range(3)] == ["phase-1"] * 3


@pytest.mark.parametrize("dtype", [np.bool_, np.int16, np.int32, np.int64, np.float64])
@pytest.mark.parametrize("run", [1, 3, 30, 2 * FEW_ROWS])
def test_rows_that_lie_together_are_the_same_rows(dtype: type[np.generic], run: int) -> None:
    column = np.arange(40_000).astype(dtype)
    begins = np.random.default_rng(0).integers(0, column.size - run, 2 * FEW_ROWS // run + 1)
    rows = (begins[:, None] + np.arange(run)).ravel()
    assert gathered(column, rows).tolist() == column[rows].tolist()
    assert gathered(column[::-1], rows).tolist() == column[::-1][rows].tolist()


def test_without_a_compiler_rows_are_taken_likewise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "gather", None)
    test_rows_that_lie_together_are_the_same_rows(np.int64, 30)


def test_rows_count_from_the_end_and_are_looked_for_in_vain_as_in_numpy() -> None:
    column, rows = np.arange(10), np.zeros(FEW_ROWS, np.intp)
    rows[-1] = -1
    assert gathered(column, rows)[-1] == 9
    rows[-1] = 10
    with pytest.raises(IndexError):
        gathered(column, rows)


def test_all_rows_are_the_table_itself() -> None:
    table = a_table()
    assert table.take(table.ints("rank") >= 0) is table


def test_taken_rows_go_to_other_processes_without_the_rest() -> None:
    few = a_table(100_000).take(np.array([7]))
    sent = pickle.dumps(few)
    assert len(sent) < 1000
    assert pickle.loads(sent).ints("rank").tolist() == [7]


@pytest.mark.parametrize("words", [1, 20])
def test_rows_that_hold_one_of_some_words(words: int) -> None:
    column = Strings.of([None, *(f"dp-{row}" for row in range(30)), "dp-0"])
    wanted = [f"dp-{row}" for row in range(words)]
    assert column.equals(*wanted).tolist() == [column[row] in wanted for row in range(len(column))]
    among = column.among(*wanted)
    assert among[column.codes].tolist() == column.equals(*wanted).tolist(), "null is none of them"


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("largest", [0, 9, 2**11, 2**16, 2**22, 2**31, 2**32 - 1, 2**40])
def test_equal_values_keep_their_order(
    largest: int, is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_compiled:
        monkeypatch.setattr(compiled, "stable_order", None)
    values = np.random.default_rng(largest).integers(0, largest + 1, 2000)
    assert (stable_order(values) == np.argsort(values, kind="stable")).all()
    assert stable_order(values[:0]).size == 0


@pytest.fixture(params=["compiled", "numpy"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both forms of work on intervals."""
    if request.param == "numpy":
        monkeypatch.setattr(compiled, "merge", None)
        monkeypatch.setattr(compiled, "covered", None)
        monkeypatch.setattr(compiled, "count_until", None)


def moments(start: Ints, end: Ints) -> set[int]:
    """All moments that are in any of the intervals."""
    return {one for both in zip(start, end, strict=True) for one in range(*map(int, both))}


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("seed", range(20))
def test_a_union_covers_the_moments_of_its_intervals(seed: int) -> None:
    random = np.random.default_rng(seed)
    start = random.integers(-50, 300, seed * 3)
    start = np.sort(start) if seed % 2 else start
    end = start + random.integers(-3, 12, start.size)
    found = union(start, end)
    assert moments(found.start, found.end) == moments(start, end)
    assert (found.start[1:] > found.end[:-1]).all()
    position = random.integers(-60, 320, 200)
    position = np.sort(position) if seed % 3 else position
    before = [sum(one < at for one in moments(start, end)) for at in position.tolist()]
    assert found.covered(position).tolist() == before


@pytest.mark.usefixtures("either")
def test_nothing_covers_nothing() -> None:
    nothing = np.zeros(0, np.int64)
    assert union(nothing, nothing).start.size == 0
    assert union(np.array([3]), np.array([3])).covered(np.array([1, 5])).tolist() == [0, 0]
    assert Union.of(np.array([1]), np.array([4])).covered(nothing).size == 0
