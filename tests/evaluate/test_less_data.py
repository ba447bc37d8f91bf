"""What becomes of verdicts where data is missing, and how it is counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.settings import Settings
from stepscope.evaluate import Case, choose, run
from stepscope.evaluate.conditions import WHOLE, Condition, stripped
from stepscope.evaluate.intervals import Rate
from stepscope.evaluate.outcome import Outcome, outcome, tallies
from stepscope.evaluate.reliability import reliability
from stepscope.evaluate.remaining import Remaining, remaining
from stepscope.evaluate.runner import ReportedVerdict, Result
from stepscope.evaluate.suites import SMOKE
from stepscope.simulate import Scenario, Simulation, simulate
from stepscope.window import Table, Window
from tests.evaluate.jobs import JOB, a_fault, a_result, a_truth

SMALL = replace(SMOKE, steps=24, onset=12, healthy=1)


def a_silent(cost: float = 0.2, state: str = "healthy", **score: Any) -> Result:
    one = a_result(found=False, complete=False, cause=False, **score)
    return replace(one, said=(), cost=cost, state=state, condition="no-kernels")


def said(confidence: float, right: bool = True) -> ReportedVerdict:
    return ReportedVerdict("slowdown", "compute", (3,), (), "rank 3", confidence, right)


@pytest.mark.parametrize(("result", "expected"), [
    (a_result(), "exact"),
    (a_result(accused=1), "accused"),
    (a_result(found=False), "inexact"),
    (a_silent(), "called healthy"),
    (a_silent(cost=0.09), "missed"),
    (a_silent(state="unknown"), "unknown"),
    (a_silent(state="regression"), "inexact"),
    (replace(a_silent(suspects=1), said=(said(0.3),)), "suspect"),
    (replace(a_silent(), failed="ValueError"), "failed"),
    (a_result(costly=False), None),
])  # fmt: skip
def test_outcomes(result: Result, expected: Outcome | None) -> None:
    assert outcome(result) == expected


def test_conditions_are_counted_apart() -> None:
    healthy = replace(a_result(costly=False, found=None), row="healthy", said=())
    loud = replace(healthy, score=replace(healthy.score, alarms=1), condition="no-kernels")
    whole, less = tallies([a_result(), a_silent(), healthy, loud, a_silent(cost=0.05)])
    assert (whole.condition, whole.jobs, whole.exact, whole.healthy) == ("everything", 2, 1, 1)
    assert (less.called_healthy, less.large, less.missed, less.healthy_accused) == (1, 1, 1, 1)


def test_reliability_counts_verdicts_by_what_they_state() -> None:
    told = (said(1.0), said(0.9), said(0.95, right=False), said(0.5), said(0.2, right=False))
    found = reliability([replace(a_result(), said=told)])
    assert [(one.low, one.high) for one in found] == [
        (0.0, 0.5), (0.5, 0.6), (0.6, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 1.0),
    ]  # fmt: skip
    assert [one.right for one in found if one.right.of] == [Rate(0, 1), Rate(1, 1), Rate(2, 3)]
    assert found[-1].to_json() == {
        "from": 0.9, "to": 1.0, "verdicts": 3, "right": 2, "mean_confidence": 0.95,
    }  # fmt: skip


def seen(*ranks: int) -> Window:
    return Window(JOB, {"steps": Table({"rank": np.array(ranks)})})


def left(steps: tuple[int, int], *ranks: int, active: range = range(10, 20)) -> Remaining:
    truth = a_truth(a_fault((3,), lost_fraction=0.5, steps=(active.start, active.stop - 1)))
    return remaining(truth, [list(active)], seen(*ranks), steps)


def test_a_fault_outside_of_the_steps_that_are_left_is_none() -> None:
    assert left((0, 9), 3).truth.faults[0].steps is None and left((0, 9), 3).cost is None
    assert left((8, 12), 3).truth.faults[0].steps == (10, 12)


def test_a_cost_counts_from_where_the_fault_began() -> None:
    assert left((0, 19), 3).cost == 0.5
    once = left((0, 19), 3, active=range(10, 11)).cost
    assert once == pytest.approx(1 / 11)  # ten steps, one of them twice as long


def test_a_culprit_without_rows_is_not_recorded() -> None:
    assert left((0, 19), 0, 1, 2).unrecorded and not left((0, 19), 3).unrecorded


def cases(*families: str) -> tuple[Case, ...]:
    return choose(SMALL, range(1), families).cases


def test_a_job_is_simulated_once_and_diagnosed_under_every_condition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played: list[str] = []

    def noted(scenario: Scenario) -> Simulation:
        played.append(scenario.name)
        return simulate(scenario)

    monkeypatch.setattr("stepscope.evaluate.runner.simulate", noted)
    conditions = (WHOLE, *stripped("no-kernels,durations-only"))
    results = run(cases("stuck_loader"), fast=True, jobs=1, conditions=conditions)
    assert len(played) == 1
    assert [one.condition for one in results] == ["", "no-kernels", "durations-only"]
    assert results[0].score.found and results[0].cost == 1.0
    assert results[0].said[0].right and results[0].said[0].confidence


def test_a_condition_under_which_the_diagnosis_fails_ends_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(window: Window, settings: Settings) -> Diagnosis:
        if "stacks" not in window.tables:
            raise ValueError("no stacks")
        return diagnose(window, settings)

    monkeypatch.setattr("stepscope.evaluate.runner.diagnose", fails)
    conditions = (*stripped("no-stacks"), Condition("again"))
    lost, found = run(cases("stuck_loader"), fast=True, jobs=1, conditions=conditions)
    assert lost.failed.startswith("ValueError: no stacks") and not found.failed
