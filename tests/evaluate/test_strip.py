"""Strips remove data or make it coarser; they never add any."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from stepscope.evaluate.strip import STRIPS, Context, foreign
from stepscope.simulate import Simulation
from stepscope.window import NULL, Column, Ints, Strings, Table, Window
from tests.evaluate.jobs import a_job

MS = 1_000_000
FAULTS = ("gpu_slow:rank=5,factor=2,from=6", "hang:rank=3,from=8")
SELECTING = [name for name in STRIPS if name not in ("durations-only", "foreign-names",
                                                     "rounded-1ms")]  # fmt: skip
"""The strips that leave every value as it is."""


@cache
def job(fault: str = FAULTS[0]) -> Simulation:
    return a_job(fault)


def stripped(name: str, window: Window, step: int | None = 6) -> Window:
    return STRIPS[name].apply(window, Context(seed=3, step=step))


def texts(column: Column) -> list[object]:
    if isinstance(column, Strings):
        return [column[row] for row in range(len(column))]
    return list(column.tolist())


def rows(table: Table, columns: list[str]) -> list[tuple[object, ...]]:
    return list(zip(*(texts(table.columns[name]) for name in columns), strict=True))


def is_null(column: Column) -> bool:
    if isinstance(column, Strings):
        return bool((column.codes < 0).all())
    return bool((np.isnan(column) if column.dtype.kind == "f" else column == NULL).all())


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", STRIPS)
def test_nothing_is_added(name: str, fault: str) -> None:
    before = job(fault).window
    after = stripped(name, before)
    assert set(after.tables) <= set(before.tables)
    assert set(after.ranks) <= set(before.ranks)
    for table, left in after.tables.items():
        whole = before.tables[table]
        assert set(left.columns) <= set(whole.columns) and len(left) <= len(whole)
        for column, values in left.columns.items():
            if column.endswith("_ns") and not is_null(whole.columns[column]):
                assert (left.ints(column) != NULL).sum() <= (whole.ints(column) != NULL).sum()
            assert len(values) == len(left)
    ours, theirs = after.job, before.job
    assert (ours.job_id, ours.world_size, ours.hosts) == (theirs.job_id, 16, theirs.hosts)
    assert ours.groups in ((), theirs.groups) and ours.schedule in (None, theirs.schedule)


@pytest.mark.parametrize("name", SELECTING)
def test_what_is_left_was_there_before(name: str) -> None:
    before = job().window
    for table, left in stripped(name, before).tables.items():
        known = [column for column, values in left.columns.items() if not is_null(values)]
        assert set(rows(left, known)) <= set(rows(before.tables[table], known))


@pytest.mark.parametrize("name", [one for one in STRIPS if one != "foreign-names"])
def test_what_is_removed_twice_is_removed_once(name: str) -> None:
    once = stripped(name, job().window, None)
    if name == "half-ranks":
        once = replace(once, job=replace(once.job, recorded_ranks=None))
        assert set(stripped(name, once).ranks) < set(once.ranks)
        return
    twice = stripped(name, once, None)
    assert twice.job == once.job and set(twice.tables) == set(once.tables)
    for table, left in twice.tables.items():
        assert rows(left, list(left.columns)) == rows(once.tables[table], list(left.columns))


@pytest.mark.parametrize("name", STRIPS)
def test_a_job_of_which_little_is_known_can_be_stripped(name: str) -> None:
    whole = job().window
    for tables in ({}, {"steps": whole.tables["steps"]}, {"comm_ops": whole.tables["comm_ops"]}):
        after = stripped(name, Window(whole.job, tables))
        assert set(after.tables) <= set(tables)


def test_times_are_rounded_to_the_nearest_millisecond() -> None:
    before = job().window
    after = stripped("rounded-1ms", before)
    for table, left in after.tables.items():
        for column in left.columns:
            if column.endswith("_ns"):
                new, old = left.ints(column), before.tables[table].ints(column)
                known = old != NULL
                assert ((new == NULL) == ~known).all()
                assert (new[known] % MS == 0).all()
                assert (abs(new[known] - old[known]) <= MS // 2).all()


def test_loggers_sum_up_phases_and_lose_their_order() -> None:
    before = job().window
    after = stripped("durations-only", before)
    assert set(after.tables) == {"steps", "phases"}
    whole, left = before.tables["phases"], after.tables["phases"]
    assert set(left.columns) == {"rank", "step", "phase", "microbatch", "start_ns", "duration_ns"}
    assert "mlp" not in texts(left.strings("phase"))

    def total(table: Table) -> int:
        mine = table.strings("phase").equals("forward-compute") & (table.ints("rank") == 5)
        return int(table.ints("duration_ns")[mine & (table.ints("step") == 7)].sum())

    assert total(left) == total(whole) > 0
    steps = after.tables["steps"]
    mine = left.take((left.ints("rank") == 5) & (left.ints("step") == 7))
    start = steps.ints("start_ns")[(steps.ints("rank") == 5) & (steps.ints("step") == 7)]
    follows = mine.ints("start_ns") + mine.ints("duration_ns")
    assert mine.ints("start_ns").tolist() == [int(start[0]), *follows[:-1].tolist()]
    names = texts(mine.strings("phase"))
    assert names == sorted(map(str, names)) and len(set(names)) == len(names)


def test_phases_have_other_names_but_stay_distinct() -> None:
    ours = ("forward-compute", "backward-compute", "dp-reduce-scatter", "mine", "optimizer")
    theirs = foreign(ours, 1)
    assert len(set(theirs)) == len(ours) and not set(theirs) & set(ours)
    assert foreign(ours, 1) == theirs
    assert len({foreign(ours, seed) for seed in range(20)}) > 1
    before = job().window.tables["phases"]
    after = stripped("foreign-names", job().window).tables["phases"]
    rest = [name for name in before.columns if name != "phase"]
    assert rows(after, rest) == rows(before, rest)


def test_every_second_rank_is_missing_from_all_tables() -> None:
    after = stripped("half-ranks", job().window)
    assert after.ranks == after.job.recorded_ranks == tuple(range(0, 16, 2))


def test_five_steps_lie_around_the_fault_or_at_the_end() -> None:
    def steps(window: Window) -> list[int]:
        return sorted(set(window.tables["comm_ops"].ints("step").tolist()))

    whole = job().window
    assert steps(stripped("five-steps", whole, 6)) == [4, 5, 6, 7, 8]
    assert steps(stripped("five-steps", whole, 0)) == [0, 1, 2, 3, 4]
    assert steps(stripped("five-steps", whole, None)) == [7, 8, 9, 10, 11]
    cut = stripped("five-steps", whole, 6)
    end = last_end(cut.tables["steps"])
    assert cut.job.observed_until_ns == end < (whole.job.observed_until_ns or 0)
    assert (cut.tables["hardware"].ints("ts_ns") <= end).all()
    stuck = stripped("five-steps", job(FAULTS[1]).window, 8)
    assert steps(stuck) == [4, 5, 6, 7, 8]
    assert (stuck.tables["comm_ops"].ints("end_ns") == NULL).any()
    assert stuck.job.observed_until_ns == job(FAULTS[1]).window.job.observed_until_ns


def last_end(steps: Table) -> int:
    ends: Ints = steps.ints("start_ns") + steps.ints("duration_ns")
    return int(ends.max())


def test_host_calls_have_no_times_of_the_device() -> None:
    operators = stripped("host-calls-only", job().window).tables["comm_ops"]
    assert operators.has("enqueue_ns") and not operators.has("start_ns")
    assert not operators.has("end_ns") and not operators.has("state")


def test_a_required_column_is_null_and_an_optional_one_is_left_out() -> None:
    assert is_null(stripped("no-enqueue", job().window).tables["comm_ops"].columns["enqueue_ns"])
    after = stripped("no-wait-marks", job().window)
    assert not after.tables["phases"].has("waits") and not after.tables["phases"].has("wait_ns")
    assert not after.tables["comm_ops"].has("blocked_ns")
