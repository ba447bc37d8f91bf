"""What became of each job under each condition, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stepscope.evaluate.conditions import EVERYTHING
from stepscope.evaluate.intervals import Median, median
from stepscope.evaluate.runner import Result
from stepscope.evaluate.table import is_healthy

LARGE_COST = 0.10
"""A job that loses more than this must not be called healthy (docs/evaluation.md)."""
Outcome = Literal[
    "exact", "inexact", "suspect", "unknown", "missed", "called healthy", "accused", "failed"
]


def outcome(one: Result) -> Outcome | None:
    """What was said about a fault that deserves a verdict; None: the job has none."""
    if not one.score.costly:
        return None
    silent: Outcome = "called healthy" if (one.cost or 0.0) > LARGE_COST else "missed"
    first_that_holds: Sequence[tuple[bool, Outcome]] = (
        (bool(one.failed), "failed"),
        (one.score.accused > 0, "accused"),
        (bool(one.score.found), "exact"),
        (len(one.said) > one.score.suspects, "inexact"),
        (one.score.suspects > 0, "suspect"),
        (one.state == "unknown", "unknown"),
        (one.state != "healthy", "inexact"),
    )
    return next((what for holds, what in first_that_holds if holds), silent)


@dataclass(frozen=True)
class Tally:
    """All jobs of a run under one condition."""

    condition: str
    jobs: int
    costly: int
    """Jobs with a fault that deserves a verdict."""
    exact: int
    """The first verdict names a culprit, and no verdict names an innocent rank."""
    inexact: int
    """Something was said to be wrong, but the culprit was not named, nor anybody else."""
    suspect: int
    suspect_right: int
    """Of `suspect`: the first suspect is a culprit."""
    unknown: int
    missed: int
    """Nothing was said about a fault that costs at most `LARGE_COST`."""
    called_healthy: int
    """Nothing was said about a fault that costs more."""
    large: int
    """Jobs with a fault that costs more than `LARGE_COST`."""
    accused: int
    """Jobs with a fault, costly or not, in which an innocent rank was named."""
    healthy: int
    healthy_accused: int
    """Healthy jobs with any verdict."""
    unrecorded: int
    """Costly jobs whose culprits were not recorded, so that nobody can name them."""
    failed: int
    seconds: Median | None
    """CPU time of one diagnosis."""
    total_s: float
    """CPU time of all diagnoses."""


def tallies(results: Sequence[Result]) -> list[Tally]:
    """One for each condition, in the order of the results."""
    return [_tally(name, [one for one in results if condition_of(one) == name])
            for name in dict.fromkeys(map(condition_of, results))]  # fmt: skip


def condition_of(one: Result) -> str:
    return one.condition or EVERYTHING


def _tally(name: str, results: Sequence[Result]) -> Tally:
    count = Counter(outcome(one) for one in results)
    healthy = [one for one in results if is_healthy(one)]
    ran = [one.computing_s for one in results if not one.failed]
    return Tally(
        name, len(results), sum(one.score.costly for one in results), count["exact"],
        count["inexact"], count["suspect"],
        sum(one.score.suspected for one in results if outcome(one) == "suspect"),
        count["unknown"], count["missed"], count["called healthy"],
        sum((one.cost or 0.0) > LARGE_COST for one in results),
        sum(one.score.accused > 0 for one in results if not is_healthy(one)),
        len(healthy), sum(one.score.alarms > 0 for one in healthy),
        sum(one.unrecorded for one in results), sum(bool(one.failed) for one in results),
        median(ran), round(sum(ran), 3),
    )  # fmt: skip
