"""Rows of one communication operator in several files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.store.operators import one_row_each
from stepscope.window import NULL, Strings, Table

from .samples import SECOND_NS, pairs, values


def table(*rows: dict[str, Any]) -> Table:
    """Operators of rank 0 in group g; what a row does not say is usual or null."""
    usual = {"rank": 0, "seq": 0, "peer": -1, "enqueue_ns": 0, "start_ns": None, "end_ns": None}
    columns: dict[str, Any] = {
        name: np.array([NULL if (v := {**usual, **row}[name]) is None else v for row in rows])
        for name in usual
    }
    columns["group"] = Strings.of([row.get("group", "g") for row in rows])
    columns["op"] = Strings.of([row.get("op", "AllReduce") for row in rows])
    return Table(columns)


def test_the_row_that_finished_is_kept() -> None:
    rows = table({"end_ns": None}, {"start_ns": 1, "end_ns": 9}, {"start_ns": 1})
    assert values(one_row_each(rows), "end_ns") == [9]


def test_of_two_outstanding_rows_the_started_one_is_kept() -> None:
    assert values(one_row_each(table({"start_ns": 1}, {})), "start_ns") == [1]


def test_what_differs_in_any_part_of_the_key_is_kept() -> None:
    different = table(
        {},
        {"rank": 1},
        {"group": "h"},
        {"seq": 1},
        {"op": "Send", "peer": 1},
        {"op": "Send", "peer": 2},
        {"op": "Recv", "peer": 1},
    )
    assert len(one_row_each(different)) == 7


def test_a_clock_aligned_anew_moves_an_operator_a_little() -> None:
    assert len(one_row_each(table({"enqueue_ns": 100}, {"enqueue_ns": 900, "end_ns": 5}))) == 1


def test_a_job_that_restarts_counts_from_zero_again() -> None:
    hung_before, finished_after = {"enqueue_ns": 0}, {"enqueue_ns": 60 * SECOND_NS, "end_ns": 9}
    assert len(one_row_each(table(hung_before, finished_after))) == 2


def test_operators_without_a_number_are_all_kept() -> None:
    assert len(one_row_each(table({"seq": None}, {"seq": None}))) == 2


def test_done_at_an_unknown_time_is_done() -> None:
    rows = table({"peer": -1}, {"peer": -1, "start_ns": 3})
    done = rows.with_column("state", Strings.of(["done", "started"]))
    assert values(one_row_each(done), "state") == ["done"]


cells = st.fixed_dictionaries(
    {
        "rank": st.integers(0, 1),
        "seq": st.integers(0, 2),
        "op": st.sampled_from(["Send", "Recv"]),
        "start_ns": st.none() | st.just(1),
        "end_ns": st.none() | st.just(2),
    }
)


@given(st.lists(cells, min_size=1, max_size=12))
def test_against_a_dictionary(rows: list[dict[str, Any]]) -> None:
    best: dict[Sequence[Any], int] = {}
    for row in rows:
        key = (row["rank"], row["seq"], row["op"])
        best[key] = max(best.get(key, 0), _knows(row["start_ns"], row["end_ns"]))

    kept = pairs(one_row_each(table(*rows)), "rank", "seq", "op", "start_ns", "end_ns")

    assert len(kept) == len(best)
    assert {row[:3]: _knows(*row[3:]) for row in kept} == best


def _knows(start_ns: int | None, end_ns: int | None) -> int:
    return 2 if end_ns else 1 if start_ns else 0
