"""Nothing is wrong: silence, at the rates the detectors promise."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.run import diagnose
from stepscope.window import Window

from .jobs import MS, Fault, a_job, put, without

ALL = (0, 1, 2, 3)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_noise_alone(ranks: int) -> None:
    diagnosis = diagnose(a_job(ranks=ranks, noise=0.3, steps=150, seed=5))
    assert diagnosis.verdicts == ()
    assert diagnosis.state == "healthy"


def test_at_most_one_of_forty_noisy_jobs_is_accused() -> None:
    """30 % noise per step, a fifth of it wandering: far beyond what the noise model assumes."""
    jobs = (a_job(noise=0.3, seed=seed, stacks=False) for seed in range(40))
    assert sum(bool(diagnose(job).verdicts) for job in jobs) <= 1


def test_no_quiet_job_is_accused() -> None:
    jobs = (a_job(noise=0.05, seed=seed, stacks=False) for seed in range(40))
    assert not any(diagnose(job).verdicts for job in jobs)


@pytest.mark.parametrize(
    "habit",
    [
        pytest.param(Fault((0,), "optimizer", 0, ms=400, every=50, computes=False), id="saves"),
        pytest.param(
            Fault((0,), "optimizer", 0, ms=80, every=10, function="save (train.py:9)"),
            id="saves often",
        ),
        pytest.param(Fault(ALL, "forward-compute", 0, ms=150, every=20), id="evaluates"),
        pytest.param(Fault((0,), "optimizer", 0, ms=1.5), id="logs"),
        pytest.param(Fault(ALL, "optimizer", 0, ms=10, every=4), id="accumulates"),
    ],
)
def test_habits_of_healthy_jobs(habit: Fault) -> None:
    diagnosis = diagnose(a_job(noise=0.2, faults=[habit]))
    assert diagnosis.verdicts == ()
    assert diagnosis.state == "healthy"


def test_one_stall_that_costs_little_is_jitter_and_no_culprit() -> None:
    stall = Fault((1,), "forward-compute", 122, 123, ms=700)
    diagnosis = diagnose(a_job(noise=0.1, faults=[stall]))
    assert diagnosis.verdicts == ()
    assert diagnosis.state == "jitter"
    assert [window.steps for window in diagnosis.windows] == [(122, 122)]


def test_a_rank_that_was_always_slow_makes_a_job_slow_even_if_a_step_stalls() -> None:
    slow = Fault((1,), "forward-compute", 0, ms=40)
    stall = Fault((1,), "forward-compute", 122, 123, ms=700)
    diagnosis = diagnose(a_job(noise=0.1, faults=[slow, stall]))
    assert [one.ranks for one in diagnosis.accused] == [(1,)]
    assert diagnosis.state == "slow"
    assert [window.kind for window in diagnosis.windows] == ["jitter"]


def test_one_pause_of_all_ranks_between_two_steps_is_a_checkpoint() -> None:
    """A schedule shows in the second one at the earliest."""
    job = a_job(faults=[Fault(ALL, "optimizer", 120, 121, ms=3000)], stacks=False)
    steps, phases = job.tables["steps"], job.tables["phases"]
    pause = np.where(steps.ints("step") == 120, 3000 * MS, 0)
    saved = phases.strings("phase").equals("optimizer") & (phases.ints("step") == 120)
    job = put(job, steps=steps.with_column("duration_ns", steps.ints("duration_ns") - pause),
              phases=phases.take(~saved))  # fmt: skip
    diagnosis = diagnose(job)
    assert (diagnosis.state, diagnosis.verdicts) == ("healthy", ())


def test_one_evaluation_within_a_step_is_no_jitter() -> None:
    habit = Fault(ALL, "optimizer", 120, 121, ms=3000, function="evaluate (train.py:60)")
    assert diagnose(a_job(faults=[habit])).state == "healthy"
    stall = Fault(ALL, "optimizer", 120, 121, ms=3000, function="tokenize (text.py:12)")
    assert diagnose(a_job(faults=[stall])).state == "jitter"


def test_the_first_steps_may_be_slow() -> None:
    compiles = Fault((0,), "forward-compute", 0, 4, ms=20_000)
    assert diagnose(a_job(noise=0.1, faults=[compiles])).state == "healthy"


def test_one_step_or_none() -> None:
    assert diagnose(a_job(steps=1)).verdicts == ()
    empty = Window(a_job(steps=1).job)
    diagnosis = diagnose(empty)
    assert (diagnosis.state, diagnosis.steps, diagnosis.ranks) == ("unknown", None, 0)
    assert {skipped.method for skipped in diagnosis.skipped} >= {"argus-l1", "argus-l2", "hang"}


def test_what_reports_draw_is_there() -> None:
    diagnosis = diagnose(without(a_job(steps=50), "comm_ops"))
    assert diagnosis.steps == (0, 49)
    assert len(diagnosis.series.steps) == len(diagnosis.series.duration_ns) == 50
    assert {(own.rank, own.phase) for own in diagnosis.rank_phases} >= {
        (rank, "forward-compute") for rank in ALL
    }
