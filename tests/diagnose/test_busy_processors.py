"""Machines that all ranks share with other processes, all the time."""

from __future__ import annotations

import pytest

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.run import diagnose

from .jobs import MS, START, a_job, a_table, put
from .test_host_calls import as_host_calls

EVERYBODY = (0, 1, 2, 3)


def shared(sharing: tuple[int, ...], cores: float, waits: float = 0.5) -> Diagnosis:
    """All ranks wait for a processor; some share theirs with processes outside the job."""
    rows = []
    for time in range(START, START + 2_000 * MS, 200 * MS):
        for rank in EVERYBODY:
            used = cores if rank in sharing else 0.0
            for metric, value in (("run_delay", waits), ("stranger_cpu_util", used),
                                  ("allowed_cpus", 2.0)):  # fmt: skip
                rows.append((rank, "host-000", metric, time, value))
    job = a_job(stacks=False)
    comm = as_host_calls(job.tables["comm_ops"], "nothing", "start_ns")  # as over gloo
    return diagnose(put(
        job, comm_ops=comm, hardware=a_table("rank host metric ts_ns value", rows)
    ))  # fmt: skip


def test_others_on_the_processors_of_all_ranks_are_reported_without_a_rank() -> None:
    (verdict,) = shared(EVERYBODY, 1.4).verdicts
    assert (verdict.ranks, verdict.cause) == ((), "contention")
    assert verdict.summary.startswith("all ranks wait for a processor for 50 % of their time")
    assert verdict.lost_fraction == pytest.approx(0.5)
    assert "`pidstat -t 1`" in verdict.advice


def test_what_others_do_not_use_they_do_not_cost() -> None:
    """Four busy ranks on two processors wait for each other."""
    (verdict,) = shared(EVERYBODY, 0.5).verdicts
    assert verdict.lost_fraction == pytest.approx(0.25)
    assert shared(EVERYBODY, 0.1).state == "healthy"


def test_others_beside_one_rank_are_no_fault_of_the_machine() -> None:
    assert not [one for one in shared((3,), 1.4).verdicts if not one.ranks]
