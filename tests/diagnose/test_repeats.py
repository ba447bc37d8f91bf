"""Jobs that step no optimizer: what repeats is counted as steps."""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.prepare.clean import clean
from stepscope.diagnose.run import diagnose
from stepscope.trace.names import OPTIMIZER
from stepscope.window import Window

from .jobs import Fault, a_job, put, without

SLOW = [Fault((2,), "forward-compute", 0, ms=20.0)]


def by_hand(job: Window, *left_out: str) -> Window:
    """The job as recorded if no optimizer is known: one step, and some phases never marked."""
    names = job.tables["phases"].strings("phase")
    phases = job.tables["phases"].take(~names.equals(OPTIMIZER, *left_out))
    tables = {"phases": phases, "comm_ops": job.tables["comm_ops"]}
    zero = {name: table.with_column("step", np.zeros(len(table), np.int64))
            for name, table in tables.items()}  # fmt: skip
    return put(without(job, "steps"), **zero)


def test_a_step_is_what_follows_a_batch() -> None:
    job = a_job(steps=60, faults=SLOW)
    window, notes = clean(by_hand(job))
    assert any("batches are counted" in note.why for note in notes)
    assert np.unique(window.tables["steps"].ints("step")).size == 60
    (verdict,) = diagnose(by_hand(job)).verdicts
    assert (verdict.ranks, verdict.phase) == ((2,), "forward-compute")


def test_without_a_loader_a_step_ends_with_a_backward_pass() -> None:
    diagnosis = diagnose(by_hand(a_job(steps=60, faults=SLOW), "data-load"))
    assert any("backward passes" in one.why for one in diagnosis.skipped)
    assert [one.ranks for one in diagnosis.verdicts] == [(2,)]


def test_a_healthy_job_stays_healthy() -> None:
    for left_out in ((), ("data-load",)):
        diagnosis = diagnose(by_hand(a_job(steps=60), *left_out))
        assert (diagnosis.state, diagnosis.verdicts) == ("healthy", ())


def test_steps_that_an_optimizer_ends_are_not_counted_again() -> None:
    window, _ = clean(a_job(steps=2))
    assert np.unique(window.tables["phases"].ints("step")).tolist() == [0, 1]


def test_calls_alone_show_the_rounds_of_a_training_loop_without_steps_and_phases() -> None:
    job = by_hand(a_job(steps=60, faults=SLOW))
    diagnosis = diagnose(without(job, "phases", "pauses"))
    assert any("rounds" in one.why for one in diagnosis.skipped)
    assert [one.ranks for one in diagnosis.verdicts] == [(2,)]
