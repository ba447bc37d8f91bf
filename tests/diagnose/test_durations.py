"""Loggers that know how long things took, but not when."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.prepare.durations import laid_out
from stepscope.diagnose.run import diagnose
from stepscope.trace import BACKWARD, DATA_LOAD, FORWARD, OPTIMIZER, Host, Job, ProcessGroup
from stepscope.window import NULL, Strings, Table, Window

from .jobs import MS, Fault, a_job, a_table

ORDER_ASSUMED = "no times, only durations: order assumed"


def without_times(window: Window, null: bool = False) -> Window:
    """Steps and phases in the order in which they were recorded, without when; nothing else."""
    tables = {}
    for name in ("steps", "phases"):
        kept = {
            key: column for key, column in window.tables[name].columns.items()
            if key not in ("start_ns", "waits", "wait_ns", "cpu_ns")
        }  # fmt: skip
        if null:
            kept["start_ns"] = np.full(len(window.tables[name]), NULL)
        tables[name] = Table(kept)
    return Window(window.job, tables)


@pytest.mark.parametrize("null", [False, True])
def test_the_slow_rank_is_named_without_times(null: bool) -> None:
    job = a_job(faults=[Fault((2,), "forward-compute", 60, times=2.0)])
    found = diagnose(without_times(job, null))
    assert [verdict.ranks for verdict in found.verdicts] == [(2,)]
    assert found.verdicts[0].phase == "forward-compute"
    notes = [note.method for note in found.skipped if note.why == ORDER_ASSUMED]
    assert notes == ["times of steps", "times of phases"]


def test_a_healthy_job_stays_healthy() -> None:
    assert diagnose(without_times(a_job())).verdicts == ()


def test_phases_alone_make_the_steps() -> None:
    job = without_times(a_job(faults=[Fault((2,), "forward-compute", 60, times=2.0)]))
    found = diagnose(Window(job.job, {"phases": job.tables["phases"]}))
    assert [verdict.ranks for verdict in found.verdicts] == [(2,)]


def test_ranks_begin_a_step_together_and_phases_follow_one_another() -> None:
    steps = Table({
        "rank": np.array([0, 1, 0, 1]), "step": np.array([4, 4, 5, 5]),
        "duration_ns": np.array([10, 12, 11, 11]) * MS,
    })  # fmt: skip
    phases = Table({
        "rank": np.array([1, 1, 0]), "step": np.array([5, 5, 5]),
        "phase": Strings.of(["fwd", "bwd", "fwd"]), "duration_ns": np.array([3, 4, 5]) * MS,
    })  # fmt: skip
    window, _ = laid_out(Window(a_job(2, 2).job, {"steps": steps, "phases": phases}))
    begins = window.tables["steps"].ints("start_ns")
    assert (begins - begins[0]).tolist() == [0, 0, 12 * MS, 12 * MS]
    starts = window.tables["phases"].ints("start_ns") - begins[2]
    assert starts.tolist() == [0, 3 * MS, 0]


def test_recorded_times_are_left_as_they_are() -> None:
    job = a_job(2, 10)
    window, notes = laid_out(job)
    assert window.tables == job.tables and not notes


def test_impossible_durations_and_phases_of_unknown_steps_do_no_harm() -> None:
    job = without_times(a_job(2, 10))
    steps, phases = job.tables["steps"], job.tables["phases"]
    lasted = steps.ints("duration_ns").copy()
    lasted[:2] = NULL, 2**62
    number = phases.ints("step").copy()
    number[::7] = 10**12
    tables = {
        "steps": steps.with_column("duration_ns", lasted),
        "phases": phases.with_column("step", number),
    }
    diagnose(Window(job.job, tables))


def test_steps_without_times_begin_with_their_first_operator_and_keep_their_durations() -> None:
    steps = a_table("rank step duration_ns", [(rank, step, 10 * MS) for step in (1, 2, 7)
                                              for rank in (0, 1)])  # fmt: skip
    calls = {1: 5000, 2: 5011, 7: 9000}
    comm = a_table("rank group seq op step enqueue_ns", [
        (rank, "dp-0", seq, "AllReduce", step, (ms + rank) * MS)
        for seq, (step, ms) in enumerate(calls.items()) for rank in (0, 1)
    ])  # fmt: skip
    window, _ = laid_out(Window(a_job(2, 2).job, {"steps": steps, "comm_ops": comm}))
    begins = window.tables["steps"].ints("start_ns")[::2] / MS
    assert begins.tolist() == [5000, 5011, 9000]


def a_job_with_partners(late_ms: float, gap_ms: float = 0) -> Window:
    """Ranks 0 to 3 are context parallel, which nobody listed: they wait for rank 3 in no phase.

    Args:
        late_ms: what rank 3 takes longer to load.
        gap_ms: what rank 0 takes longer in no phase, whoever loads for how long.
    """
    random, steps, phases = np.random.default_rng(2), [], []
    names = "chargement", "passe avant", "passe arrière"
    for step in range(60):
        spent = np.abs(random.normal([40, 100, 200], [2, 2, 3], (16, 3)))
        spent[3, 0] += late_ms
        gap = np.zeros(16) + 5
        gap[:4] += spent[3, 0].max() - spent[:4, 0] if late_ms else 0
        gap[0] += gap_ms
        ready = spent.sum(axis=1) + gap
        for rank in range(16):
            took = [*zip(names, spent[rank], strict=True),
                    ("réduction des gradients", ready.max() + 50 - ready[rank])]  # fmt: skip
            phases += [(rank, step, name, int(ms * MS)) for name, ms in took]
            steps.append((rank, step, int((ready.max() + 50) * MS)))
    return Window(Job("partners", 16, (Host("h", tuple(range(16))),)), {
        "steps": a_table("rank step duration_ns", steps),
        "phases": a_table("rank step phase duration_ns", phases),
    })  # fmt: skip


def test_partners_that_wait_in_no_phase_are_no_culprits_beside_the_rank_they_wait_for() -> None:
    (one,) = diagnose(a_job_with_partners(late_ms=80)).verdicts
    assert (one.ranks, one.cause, one.phase) == ((3,), "data_loading", "chargement")
    assert "loads data" in one.summary


def test_a_rank_that_takes_longer_in_no_phase_than_any_other_in_its_phases_is_one() -> None:
    (one,) = diagnose(a_job_with_partners(late_ms=0, gap_ms=80)).verdicts
    assert one.ranks == (0,)


def ahead(load_ms: float) -> Window:
    """A host that loads while its device computes, in a log of durations."""
    random, steps, phases = np.random.default_rng(2), [], []
    names = DATA_LOAD, FORWARD, BACKWARD, OPTIMIZER
    for step in range(60):
        spent = random.normal([load_ms, 100, 200, 20], [2, 1, 1, 0.1], (8, 4))
        for rank in range(8):
            took = [*zip(names, spent[rank], strict=True), ("all_reduce", 30)]
            phases += [(rank, step, name, int(ms * MS)) for name, ms in took]
            steps.append((rank, step, int(430 * MS)))
    groups = (ProcessGroup("dp-0", "dp", tuple(range(8))),)
    return Window(Job("ahead", 8, groups=groups), {
        "steps": a_table("rank step duration_ns", steps),
        "phases": a_table("rank step phase duration_ns", phases),
    })  # fmt: skip


def test_what_a_host_loads_beside_its_device_is_not_known_to_be_waited_for() -> None:
    found = diagnose(ahead(300))
    assert found.verdicts == ()
    assert ("phase data-load", "beside other phases, at unknown times") in {
        (note.method, note.why) for note in found.skipped
    }
