"""A healthy job beside another one: what is worse than there, from the first step on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.settings import Settings
from stepscope.diagnose.views.after_baseline import LAST, after_baseline
from stepscope.diagnose.views.some_steps import in_steps
from stepscope.trace import Host, ProcessGroup
from stepscope.window import Strings, Window, known_steps

from .jobs import Fault, a_job, without

ALL = (0, 1, 2, 3)
TOKENIZING = Fault(ALL, "forward-compute", 0, ms=60, function="tokenize (text.py:12)")
HEALTHY = a_job(steps=60, seed=5)


def beside(window: Window, healthy: Window = HEALTHY) -> Diagnosis:
    return diagnose(window, Settings(baseline=healthy))


def test_what_is_slow_on_all_ranks_from_the_first_step_on() -> None:
    slow = a_job(steps=60, faults=[TOKENIZING])
    assert not diagnose(slow).verdicts  # nothing to compare with
    found = beside(slow)
    (verdict,) = found.verdicts
    assert (verdict.cause, verdict.function, verdict.ranks) == ("code", "tokenize (text.py:12)", ())
    assert verdict.lost_fraction == pytest.approx(60 / 148, abs=0.08)
    assert found.state == "regression"
    assert "of the healthy job" in verdict.advice
    assert found.compared is not None
    largest = found.compared.changes[0]
    assert (largest.kind, largest.name) == ("phase", "forward-compute")
    assert largest.now_ns - largest.before_ns == pytest.approx(60e6, rel=0.1)


def test_all_numbers_of_steps_and_times_are_those_of_the_job() -> None:
    slow = a_job(steps=60, faults=[TOKENIZING])
    alone, found = diagnose(slow), beside(slow)
    assert (found.steps, found.series) == (alone.steps, alone.series)
    (verdict,) = found.verdicts
    assert verdict.steps is not None and verdict.steps[0] >= 0
    assert verdict.time_ns is not None
    begin_ns = slow.tables["steps"].ints("start_ns").min()
    assert verdict.time_ns[0] >= begin_ns
    assert all(window.steps[0] >= 0 for window in found.windows)
    assert found.ledger is not None and found.ledger.steps[0] >= 0
    assert found.ledger.unexplained_fraction < 0.05


def test_a_healthy_job_beside_another_one() -> None:
    for seed in range(3):
        found = beside(a_job(steps=60, seed=seed))
        assert (found.state, found.verdicts) == ("healthy", ())


def test_what_was_wrong_with_the_other_job_is_no_fault_of_this_one() -> None:
    stalls = a_job(steps=60, seed=5, faults=[Fault((2,), "forward-compute", 20, 40, ms=80)])
    found = beside(a_job(steps=60, seed=6), stalls)
    assert (found.state, found.verdicts) == ("healthy", ())


def test_a_slow_rank_is_found_as_without_a_healthy_job() -> None:
    slow = a_job(steps=60, faults=[Fault((2,), "backward-compute", 30, ms=30)])
    (alone,), (verdict,) = diagnose(slow).verdicts, beside(slow).verdicts
    assert (verdict.ranks, verdict.cause, verdict.steps) == (alone.ranks, alone.cause, alone.steps)


def test_both_as_one_job() -> None:
    """Names of groups and hosts differ from one job to the next; operators must not be mixed up."""
    job = HEALTHY.job
    renamed = replace(
        job, hosts=tuple(Host(f"new-{one.name}", one.ranks) for one in job.hosts),
        groups=tuple(ProcessGroup(f"{one.id}-again", one.kind, one.ranks) for one in job.groups),
    )  # fmt: skip
    comm = HEALTHY.tables["comm_ops"]
    words = comm.strings("group")
    again = Strings(words.codes, tuple(f"{one}-again" for one in words.values))
    other = Window(renamed, {**HEALTHY.tables, "comm_ops": comm.with_column("group", again)})
    both = after_baseline(HEALTHY, other)
    found, steps = both.tables["comm_ops"], both.tables["steps"]
    assert set(found.strings("group").values) == set(words.values)
    assert both.job == job
    before = found.ints("step") < 0
    assert 0.8 * len(comm) < before.sum() <= len(comm)  # all but the first steps
    assert found.ints("seq")[before].max() < found.ints("seq")[~before].min()
    begin_ns, late = steps.ints("start_ns"), steps.ints("step") >= 0
    assert steps.ints("step")[~late].max() == LAST
    assert begin_ns[~late].max() < begin_ns[late].min()


def test_a_table_that_only_one_of_both_recorded() -> None:
    slow = a_job(steps=60, faults=[Fault((2,), "backward-compute", 0, ms=40)])
    for name in ("stacks", "comm_ops", "phases", "hardware"):
        (verdict, *_) = beside(slow, without(HEALTHY, name)).verdicts
        assert verdict.ranks == (2,)
        assert beside(without(a_job(steps=60, seed=8), name)).verdicts == ()


def test_columns_that_only_the_job_recorded() -> None:
    plain = {name: table.columns for name, table in HEALTHY.tables.items()}
    steps = HEALTHY.tables["steps"]
    wider = steps.with_column("host_ns", steps.ints("duration_ns"))
    both = after_baseline(Window(HEALTHY.job, {**HEALTHY.tables, "steps": wider}), HEALTHY)
    assert "host_ns" not in plain["steps"]
    table = both.tables["steps"]
    assert not known_steps(table.ints("host_ns"))[table.ints("step") < 0].any()


def test_steps_of_one_job() -> None:
    """The healthy steps need not come first."""
    job = a_job(steps=100, faults=[replace(TOKENIZING, start=50)])
    healthy, slow = in_steps(job, (0, 49)), in_steps(job, (55, 99))
    assert np.unique(healthy.tables["steps"].ints("step")).tolist() == list(range(50))
    (verdict,) = beside(slow, healthy).verdicts
    assert (verdict.cause, verdict.function) == ("code", "tokenize (text.py:12)")
    later = replace(TOKENIZING, start=0, stop=50)
    job = a_job(steps=100, faults=[later])
    (verdict,) = beside(in_steps(job, (0, 49)), in_steps(job, (55, 99))).verdicts
    assert verdict.function == "tokenize (text.py:12)"


def test_a_job_without_steps_is_diagnosed_alone() -> None:
    nothing = Window(HEALTHY.job)
    slow = a_job(steps=60, faults=[Fault((2,), "backward-compute", 30, ms=30)])
    found = beside(slow, nothing)
    assert (found.verdicts[0].ranks, found.compared) == ((2,), None)
    assert beside(nothing).outcome == "no data"


def test_what_is_slow_in_both_is_a_fault_all_the_same() -> None:
    loading = Fault(ALL, "data-load", 0, ms=60)
    slow, healthy = (a_job(steps=60, seed=seed, faults=[loading]) for seed in (1, 2))
    (alone,), (verdict,) = diagnose(slow).verdicts, beside(slow, healthy).verdicts
    assert (alone.cause, verdict.cause) == ("data_loading", "data_loading")
    assert verdict.lost_fraction == pytest.approx(alone.lost_fraction, abs=0.01)


def test_three_steps_of_each() -> None:
    """As in profiler traces: nothing has to be searched for, so that few steps show much."""
    slow = a_job(steps=8, faults=[replace(TOKENIZING, ms=90)], stacks=False)
    assert not diagnose(slow).accused
    found = beside(slow, a_job(steps=8, seed=3, stacks=False))
    assert found.state == "regression"
    assert [one.cause for one in found.verdicts] == ["code"]
    again = beside(a_job(steps=8, seed=4, stacks=False), a_job(steps=8, seed=3, stacks=False))
    assert not again.verdicts and again.state != "regression"
