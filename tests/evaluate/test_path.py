"""A simulated job comes out of the store as it went in, but for what the docs say is lost."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.own_time import own_time
from stepscope.diagnose.views.timeline import timeline
from stepscope.diagnose.views.unnamed import GAPS, OUTSIDE
from stepscope.evaluate.path import through_the_store
from stepscope.evaluate.prefix import step_ends, until
from stepscope.simulate import Simulation, simulate
from stepscope.trace import TABLES
from stepscope.window import NULL, Strings, Table, Window
from tests.evaluate.jobs import a_job
from tests.simulate.jobs import a_scenario


@lru_cache
def healthy() -> tuple[Simulation, Window]:
    simulation = a_job()
    return simulation, through_the_store(simulation.window)


@lru_cache
def hanging() -> tuple[Simulation, Window]:
    simulation = a_job("hang:rank=5,at=host,from=11")
    return simulation, through_the_store(simulation.window)


def rows(table: Table | None, *columns: str) -> list[tuple[object, ...]]:
    assert table is not None
    plain = [_plain(table, name) for name in columns]
    return sorted(zip(*plain, strict=True), key=str)


def _plain(table: Table, name: str) -> list[object]:
    column = table.columns[name]
    if isinstance(column, Strings):
        return [column[at] for at in range(len(table))]
    return list(table.ints(name).tolist())


def same(name: str, *columns: str) -> None:
    simulation, read = healthy()
    assert rows(read.table(name), *columns) == rows(simulation.window.table(name), *columns)


def test_steps_are_found_again_from_the_calls_of_the_training_loop() -> None:
    same("steps", "rank", "step", "start_ns", "duration_ns")


def test_phases_keep_their_times_steps_and_microbatches() -> None:
    same("phases", "rank", "step", "phase", "microbatch", "start_ns", "duration_ns")


def test_kernels_keep_theirs_and_are_summed_up_on_the_way() -> None:
    window = simulate(replace(a_scenario(ranks=4, steps=11), detail="full")).window
    read = through_the_store(window)
    names = ("rank", "step", "kernel", "stream", "start_ns", "duration_ns")
    assert rows(read.table("kernels"), *names) == rows(window.table("kernels"), *names)
    sums, kernels = read.table("kernel_summaries"), read.table("kernels")
    assert sums is not None and kernels is not None
    assert int(sums.ints("count").sum()) == len(kernels)
    assert set(sums.strings("kernel").values) == set(kernels.strings("kernel").values)


def test_collectives_keep_who_met_whom_when_and_who_stood_in_it() -> None:
    same("comm_ops", "rank", "step", "group", "seq", "op", "peer", "bytes", "start_ns", "end_ns",
         "blocked_ns")  # fmt: skip


JOBS: list[dict[str, Any]] = [
    {"ranks": 16, "tp": 2, "pp": 2, "ep": 2, "kind": "moe"},
    {"ranks": 8, "pp": 2, "chunks": 2, "sharding": "fsdp", "kind": "variable"},
    {"ranks": 8, "cp": 2, "sharding": "ddp"},
]


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_what_ranks_did_themselves_is_the_same_on_both_ways(job: dict[str, Any]) -> None:
    window = simulate(a_scenario("gc:rank=3,ms=80", steps=11, **job)).window
    before, after = (own_time(one, timeline(one)) for one in (window, through_the_store(window)))
    assert before.phases == after.phases and {OUTSIDE, GAPS} < set(before.phases)
    np.testing.assert_allclose(after.own, before.own, atol=1)


@pytest.mark.parametrize("name", ["hardware", "stacks", "kernel_summaries"])
def test_what_comes_from_elsewhere_is_all_there(name: str) -> None:
    simulation, read = healthy()
    before, after = simulation.window.table(name), read.table(name)
    assert before is not None and after is not None
    assert len(before) == len(after)


def test_the_job_is_described_as_before() -> None:
    simulation, read = healthy()
    before, after = simulation.job, read.job
    assert after.hosts == before.hosts
    assert set(after.groups) == set(before.groups)
    assert (after.schedule, dict(after.parallelism)) == (before.schedule, dict(before.parallelism))
    assert after.fabric is not None


def test_operators_that_never_end_are_open_but_receives_that_nobody_came_to() -> None:
    simulation, read = hanging()
    table, before = read.table("comm_ops"), simulation.window.table("comm_ops")
    assert table is not None and before is not None
    started = before.take((before.ints("end_ns") == NULL) & (before.ints("start_ns") != NULL))
    ahead = started.strings("op").equals("Recv") & (started.ints("blocked_ns") != NULL)
    assert 0 < int(ahead.sum()) < len(started)
    names = ("rank", "group", "seq", "op")
    in_flight = table.take(table.ints("end_ns") == NULL)
    assert rows(in_flight, *names) == rows(started.take(~ahead), *names)


def test_a_kernel_that_never_ends_is_found_though_its_device_was_told_of_the_next_receive() -> None:
    read = through_the_store(a_job("hang:rank=5,from=11").window)
    (verdict,) = diagnose(read).verdicts
    assert (verdict.kind, verdict.ranks) == ("hang", (5,))


def test_a_hang_is_found_at_the_other_end() -> None:
    _, read = hanging()
    (verdict,) = diagnose(read).verdicts
    assert (verdict.kind, verdict.ranks) == ("hang", (5,))


@pytest.mark.parametrize("way", [0, 1])
def test_nothing_but_the_tables_of_the_contract_reaches_diagnosis(way: int) -> None:
    window = (hanging()[0].window, hanging()[1])[way]
    for name, table in window.tables.items():
        assert set(table.columns) <= set(TABLES[name].columns), name


def test_a_prefix_knows_nothing_of_later() -> None:
    simulation, _ = healthy()
    moment = step_ends(simulation.window)[5]
    known = until(simulation.window, moment)
    phases, operators = known.table("phases"), known.table("comm_ops")
    assert phases is not None and operators is not None
    assert int((phases.ints("start_ns") + phases.ints("duration_ns")).max()) <= moment
    for column in ("enqueue_ns", "start_ns", "end_ns"):
        assert int(operators.ints(column).max()) <= moment
    assert max(step_ends(known)) == 5


def test_an_operator_under_way_is_open_in_a_prefix() -> None:
    simulation, _ = healthy()
    before = simulation.window.table("comm_ops")
    assert before is not None
    longest = int(np.argmax(before.ints("end_ns") - before.ints("start_ns")))
    moment = int(before.ints("end_ns")[longest]) - 1
    known = until(simulation.window, moment).table("comm_ops")
    assert known is not None
    running = (known.ints("end_ns") == NULL) & (known.ints("start_ns") != NULL)
    assert running.any()
    states = known.strings("state")
    assert {states[int(row)] for row in np.flatnonzero(running)} == {"started"}
