"""Jobs on NCCL whose operators are known as host calls only: no row of `comm_ops` has an end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.prepare.call_times import without_unrecorded_times
from stepscope.diagnose.run import diagnose, find_hang
from stepscope.window import NULL, Strings, Table, Window

from .jobs import MS, START, a_job, a_table, put, without
from .test_hang import watched
from .test_kernel_blame import case_2, simulated

TOLD = ["done", "nothing", "scheduled"]


def as_host_calls(comm: Table, told: str, columns: str = "start_ns end_ns") -> Table:
    """The same operators, as somebody saw them who knows only when hosts called."""
    for column in columns.split():
        comm = comm.with_column(column, np.full(len(comm), NULL))
    if told == "nothing":
        return Table({name: column for name, column in comm.columns.items() if name != "state"})
    return comm.with_column("state", Strings.of([told] * len(comm)))


def calls_of(job: Window, group: str = "dp-0") -> Table:
    """One call per rank and window of a job of kernels."""
    rows = [(rank, group, seq, "AllReduce", -1, START + seq * 100 * MS, NULL, "done")
            for seq in range(50) for rank in job.ranks]  # fmt: skip
    return a_table("rank group seq op peer enqueue_ns end_ns state", rows)


def test_a_slow_group_is_still_found_by_its_kernels() -> None:
    job = case_2()
    (alone,) = diagnose(job).verdicts
    (beside,) = diagnose(put(job, comm_ops=calls_of(job))).verdicts
    assert alone.cause == "network"
    assert replace(beside, summary=alone.summary, steps=None) == alone, "calls show steps as well"


def test_ends_of_few_other_operators_do_not_stop_it() -> None:
    """Some operators on the CPU, such as a barrier, end where hosts see it."""
    job = case_2()
    calls = calls_of(job)
    some = calls.ints("seq") < 5
    ended = np.where(some, calls.ints("enqueue_ns") + MS, NULL)
    mixed = calls.with_column("end_ns", ended)
    assert [one.group for one in diagnose(put(job, comm_ops=mixed)).verdicts] == [
        one.group for one in diagnose(job).verdicts
    ]


@pytest.mark.parametrize("told", TOLD)
def test_a_slow_rank_is_still_found_by_its_kernels(told: str) -> None:
    job = simulated("gpu_slow:rank=5,factor=1.5", steps=30, detail="full")
    tables = {name: job.tables[name] for name in ("steps", "kernels")}
    calls = as_host_calls(job.tables["comm_ops"], told)
    (verdict,) = diagnose(replace(job, tables={**tables, "comm_ops": calls})).verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("slowdown", (5,), "compute")


@pytest.mark.parametrize("told", TOLD[:2])
def test_operators_without_ends_do_not_hang(told: str) -> None:
    job = a_job(steps=60, stacks=False)
    job = watched(put(job, comm_ops=as_host_calls(job.tables["comm_ops"], told)), 100)
    assert find_hang(without(job, "hardware")) is None
    assert diagnose(without(job, "hardware")).state == "healthy"


def test_operators_without_ends_do_not_hang_beside_others_with_ends() -> None:
    """A group on NCCL, of which calls are known, and one on gloo."""
    job = a_job(steps=60, stacks=False)
    comm = job.tables["comm_ops"]
    silent = comm.ints("seq") % 3 > 0
    names = Strings.of(["nccl" if one else "dp-0" for one in silent])
    comm = as_host_calls(comm, "nothing", "start_ns").with_column("group", names)
    comm = comm.with_column("end_ns", np.where(silent, NULL, comm.ints("end_ns")))
    assert find_hang(without(watched(put(job, comm_ops=comm), 100), "hardware")) is None


def test_methods_by_ends_say_what_is_missing() -> None:
    job = a_job(steps=60)
    job = put(job, comm_ops=as_host_calls(job.tables["comm_ops"], "done"))
    why = {one.method: one.why for one in diagnose(job).skipped}
    assert "end_ns" in why["slow-link"]


def test_nothing_ended_before_the_first_step() -> None:
    """Ranks that hang in their first operator: there the ends are not unknown."""
    job = without(a_job(steps=1), "steps")
    comm = as_host_calls(job.tables["comm_ops"], "nothing")
    assert without_unrecorded_times(put(job, comm_ops=comm)).tables["comm_ops"].has("end_ns")


def test_a_stopped_rank_is_still_found_if_others_say_that_they_are_in_an_operator() -> None:
    """Their `state` says so, although no end was recorded."""
    job = a_job(steps=60, stacks=False)
    comm = as_host_calls(job.tables["comm_ops"], "done")
    newest, mine = comm.ints("seq").max(), comm.ints("rank") == 2
    comm = comm.take(~((comm.ints("seq") == newest) & mine))
    state: list[str | None] = ["started" if one else "done" for one in comm.ints("seq") == newest]
    job = put(job, comm_ops=comm.with_column("state", Strings.of(state)))
    found = find_hang(without(watched(job, 30), "hardware"))
    assert found is not None and found.verdicts[0].ranks == (2,)
