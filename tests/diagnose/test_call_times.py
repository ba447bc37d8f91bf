"""Operators of which only device times were recorded: no row, or not every row, has a call."""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.prepare.clean import clean
from stepscope.diagnose.run import diagnose
from stepscope.trace import Job
from stepscope.window import NULL, Table, Window

from .jobs import a_table, put
from .test_kernel_blame import simulated

COLUMNS = "rank group seq op enqueue_ns start_ns end_ns"


def without_calls(job: Window) -> Window:
    comm = job.tables["comm_ops"]
    kept = {name: column for name, column in comm.columns.items() if name != "enqueue_ns"}
    return put(job, comm_ops=Table(kept))


def cleaned(rows: list[tuple[object, ...]]) -> tuple[Table, list[str]]:
    window, notes = clean(Window(Job("calls", 2), {"comm_ops": a_table(COLUMNS, rows)}))
    return window.tables["comm_ops"], [one.why for one in notes]


def test_the_start_stands_in_for_a_call_that_nobody_recorded() -> None:
    comm, notes = cleaned([(0, "dp-0", 0, "AllReduce", NULL, 500, 600),
                           (0, "dp-0", 1, "AllReduce", 650, 700, 800)])  # fmt: skip
    assert comm.ints("enqueue_ns").tolist() == [500, 650]
    assert not notes


def test_an_operator_that_never_started_is_behind_all_that_its_rank_started() -> None:
    comm, _ = cleaned([(0, "pp-0", 0, "Send", NULL, 500, 600),
                       (0, "tp-0", 0, "AllReduce", NULL, 700, NULL),
                       (0, "pp-0", 1, "Send", NULL, NULL, NULL),
                       (1, "tp-0", 0, "AllReduce", NULL, 900, NULL)])  # fmt: skip
    assert comm.ints("enqueue_ns").tolist() == [500, 700, 700, 900]


def test_a_row_without_any_time_is_dropped() -> None:
    comm, notes = cleaned([(0, "dp-0", 0, "AllReduce", 400, 500, 600),
                           (0, "dp-0", 1, "AllReduce", NULL, NULL, 800)])  # fmt: skip
    assert comm.ints("seq").tolist() == [0]
    assert notes == ["1 rows with impossible values dropped"]


def test_a_slow_rank_is_found_without_calls_as_with_them() -> None:
    job = simulated("gpu_slow:rank=5,factor=1.5", steps=30)
    with_calls, without = diagnose(job).verdicts, diagnose(without_calls(job)).verdicts
    assert [one.ranks for one in without] == [one.ranks for one in with_calls] == [(5,)]


def test_a_hang_is_found_without_calls() -> None:
    job = simulated("hang:rank=5,onset=20", steps=30)
    found = diagnose(without_calls(job))
    assert found.state == "hang"
    assert np.isin([one.ranks for one in found.verdicts], 5).all()
