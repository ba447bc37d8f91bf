"""What limits a job in which nobody is to blame, where no trace says where time went."""

from __future__ import annotations

import pytest

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.run import diagnose
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Window

from .jobs import MS, START, a_table

RANKS, STEPS = 4, 40


def a_job(load_ms: int, compute_ms: int, reduce_ms: int) -> Diagnosis:
    """Devices run phases one after the other, while hosts load in between."""
    lengths = {"data-load": load_ms, "forward-compute": compute_ms, "dp-allreduce": reduce_ms}
    steps, phases, clock = [], [], START
    for step in range(STEPS):
        for rank in range(RANKS):
            steps.append((rank, step, clock, sum(lengths.values()) * MS))
            begin = clock
            for name, lasts in lengths.items():
                waits = lasts * MS if name == "dp-allreduce" else 0
                phases.append((rank, step, name, begin, lasts * MS, waits))
                begin += lasts * MS
        clock += sum(lengths.values()) * MS
    ranks = tuple(range(RANKS))
    host = Host("h", ranks, gpus=tuple(f"gpu-{rank}" for rank in ranks))
    job = Job("limits", RANKS, (host,), {}, (ProcessGroup("dp-0", "dp", ranks),))
    return diagnose(Window(job, {
        "steps": a_table("rank step start_ns duration_ns", steps),
        "phases": a_table("rank step phase start_ns duration_ns wait_ns", phases),
    }))  # fmt: skip


def test_communication_that_takes_a_third_of_the_step_is_said() -> None:
    found = a_job(load_ms=2, compute_ms=60, reduce_ms=30)
    (limit,) = found.limits
    assert (found.verdicts, limit.part) == ((), "exposed_ns")
    assert limit.share == pytest.approx(30 / 92, abs=0.01)


def test_a_little_communication_is_no_limit() -> None:
    assert a_job(load_ms=2, compute_ms=80, reduce_ms=10).limits == ()


def test_loading_beside_which_no_device_phase_runs_is_lost() -> None:
    """On GPUs, too, where phases are known to be those of devices."""
    (verdict,) = a_job(load_ms=60, compute_ms=60, reduce_ms=10).verdicts
    assert (verdict.cause, verdict.ranks) == ("data_loading", ())
    assert verdict.lost_fraction == pytest.approx(60 / 130, abs=0.05)
