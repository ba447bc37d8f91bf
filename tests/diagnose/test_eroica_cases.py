"""EROICA's five cases, simulated: every problem is found and named, and nobody else (issue 17)."""

from __future__ import annotations

from functools import lru_cache

import pytest

from stepscope.diagnose.expected import NOTHING, Expected
from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.overview.learned import Learning
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.settings import Settings
from stepscope.evaluate.score import score
from stepscope.simulate import Simulation, parse_fault, simulate
from stepscope.simulate.cases import case_values
from stepscope.simulate.parse import from_values

Problem = tuple[str, frozenset[int], str | None]
"""Cause, ranks, and the name of the function."""


def problem(cause: str, *ranks: int, function: str | None = None) -> Problem:
    return cause, frozenset(ranks), function


PROBLEMS: dict[str, tuple[Problem, ...]] = {
    "eroica-1": (
        problem("data_loading", 3, 17, 30, 31, 44, 58, function="recv_into"),
        problem("code", function="forward"),
        problem("gc", function="collect"),
    ),
    "eroica-2": (
        problem("network"), problem("network", 21), problem("load_imbalance"),
        problem("data_loading", 5, 33, 62, function="pin_memory"),
    ),
    "eroica-3": (problem("data_loading", 77, function="put"),),
    "eroica-4": (
        problem("compute", *range(16, 24), *range(40, 48)), problem("network", 3, 30, 52),
    ),
    "eroica-5": (problem("contention"),),
}  # fmt: skip
NEEDS_BASELINE = ("eroica-2",)
"""The customers knew what their network reaches, and that inputs should be equal (section 6.2)."""


def healthy(name: str, seed: int) -> Simulation:
    return simulate(from_values({**case_values(name), "fault": [], "seed": seed}))


@lru_cache(maxsize=2)
def learned(name: str) -> Expected:
    learning = Learning()
    learning.add(healthy(name, 11).window)
    return learning.expected


def merged(diagnosis: Diagnosis) -> set[Problem]:
    """What was named: several verdicts on one cause and function are one problem."""
    found: dict[tuple[str, str | None, bool], set[int]] = {}
    for one in diagnosis.verdicts:
        function = one.function.partition(" ")[0] if one.function else None
        found.setdefault((one.cause, function, bool(one.ranks)), set()).update(one.ranks)
    return {(cause, frozenset(ranks), function)
            for (cause, function, _), ranks in found.items()}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_is_named_and_nobody_else(name: str) -> None:
    expected = learned(name) if name in NEEDS_BASELINE else NOTHING
    window = simulate(from_values(case_values(name))).window
    assert merged(diagnose(window, Settings(expected=expected))) == set(PROBLEMS[name])


@pytest.mark.parametrize("name", ["eroica-1", "eroica-2", "eroica-4", "eroica-5"])
def test_the_same_jobs_without_faults_are_healthy(name: str) -> None:
    """Except that samples of unequal length cost what they cost (case 2)."""
    job = healthy(name, 1)
    assert score(job.truth, job.job, diagnose(job.window)).alarms == 0


def test_shared_devices_are_named_from_the_first_step_on() -> None:
    """Case 5 as the paper had it: nothing changes in the job, and nothing else shows it."""
    fault = parse_fault("gpu_shared:host=host-000,factor=1.18")
    values = {**case_values("eroica-5"), "fault": [fault]}
    found = diagnose(simulate(from_values(values)).window, Settings(expected=learned("eroica-5")))
    assert merged(found) == {problem("contention")}
