"""Logs of calls that hold neither groups nor sequence numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from stepscope.diagnose.prepare.clean import clean
from stepscope.diagnose.prepare.unnumbered import with_numbers
from stepscope.diagnose.run import diagnose
from stepscope.store.reader import JobReader
from stepscope.trace import ProcessGroup
from stepscope.window import NULL, Strings, Table, Window
from tests.store.samples import put_parquet

from .jobs import Fault, a_job, put


def without_numbers(window: Window) -> Window:
    comm = window.tables["comm_ops"]
    nobody = Strings(np.full(len(comm), -1, np.int32), ())
    return put(window, comm_ops=comm.with_column("group", nobody).with_column(
        "seq", np.full(len(comm), NULL)))  # fmt: skip


def test_operators_of_ranks_in_one_group_are_those_of_that_group_in_order() -> None:
    window = a_job(faults=[Fault((2,), "backward-compute", 50, ms=40.0)])
    found = diagnose(without_numbers(window))
    assert [one.ranks for one in found.verdicts] == [(2,)]
    assert found.ledger == diagnose(window).ledger


def test_a_lost_row_shifts_no_other_step() -> None:
    window = without_numbers(a_job(steps=20))
    whole = with_numbers(window).tables["comm_ops"]
    lost = put(window, comm_ops=window.tables["comm_ops"].take(np.arange(len(whole)) != 7))
    seen = with_numbers(lost).tables["comm_ops"]
    later = whole.ints("step") > whole.ints("step")[7]
    assert seen.ints("seq")[-later.sum() :].tolist() == whole.ints("seq")[later].tolist()


def test_of_ranks_in_two_groups_nobody_knows_which() -> None:
    window = without_numbers(a_job())
    pair = ProcessGroup("tp-0", "tp", (0, 1))
    window = replace(window, job=replace(window.job, groups=(*window.job.groups, pair)))
    cleaned, notes = clean(window)
    assert "comm_ops" not in cleaned.tables
    assert ("table comm_ops", "no column group") in [(one.method, one.why) for one in notes]


def test_a_file_without_these_columns_is_read(tmp_path: Path) -> None:
    put_parquet(tmp_path / "comm_ops/a.parquet", {
        "rank": [0, 1, 0, 1], "op": ["AllReduce"] * 4, "enqueue_ns": [5, 6, 15, 16]})  # fmt: skip
    comm: Table = with_numbers(JobReader(str(tmp_path)).refresh()).tables["comm_ops"]
    assert comm.ints("seq").tolist() == [0, 1, 0, 1]
    assert comm.strings("group").named(comm.ints("rank") >= 0) == {"dp-0"}
