"""Scores aggregated per row of the table, per size, and over all hangs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepscope.evaluate.intervals import Confusion, Median, Rate, median, rate
from stepscope.evaluate.runner import Result
from stepscope.evaluate.suite import HEALTHY


@dataclass(frozen=True)
class Row:
    """One row of the table. Rates count its costly jobs; `accused` counts all jobs."""

    name: str
    family: str
    jobs: int
    costly: int
    found: Rate
    complete: Rate
    cause: Rate
    device: Rate
    alarms: Rate
    """Share of the jobs without a costly fault that got a verdict."""
    accused: Rate
    """Share of the jobs in which an innocent rank was named."""
    steps: Median | None
    """Steps to verdict, over the jobs in which the culprit was found."""
    seconds: Median | None
    """CPU time of one diagnosis."""
    failed: int = 0
    """Jobs that could not be simulated or diagnosed: they count as jobs without a verdict."""


def rows(results: Sequence[Result]) -> list[Row]:
    """One row per fault, in the order of the suite; healthy jobs last."""
    names = dict.fromkeys(one.row for one in results)
    ordered = sorted(names, key=lambda name: name.startswith(HEALTHY))
    return [_row(name, [one for one in results if one.row == name]) for name in ordered]


def total(results: Sequence[Result]) -> Row:
    """All jobs with a fault together."""
    return _row("all faults", [one for one in results if not is_healthy(one)])


def _row(name: str, results: Sequence[Result]) -> Row:
    families = dict.fromkeys(one.family for one in results)
    scores = [one.score for one in results]
    ran = [one for one in results if not one.failed]
    return Row(
        name, next(iter(families)) if len(families) == 1 else "", len(results),
        sum(one.costly for one in scores), rate([one.found for one in scores]),
        rate([one.complete for one in scores]), rate([one.cause for one in scores]),
        rate([one.device for one in scores]),
        rate([one.score.alarms > 0 for one in ran if not one.score.costly]),
        rate([one.score.accused > 0 for one in ran]),
        median([one.steps_to_verdict for one in results if one.steps_to_verdict is not None]),
        median([one.computing_s for one in ran]), len(results) - len(ran),
    )  # fmt: skip


def is_healthy(one: Result) -> bool:
    """Whether no fault was injected."""
    return one.row.startswith(HEALTHY)


def size_of(one: Result) -> int:
    """The number of ranks under which the job is counted."""
    return one.size or one.ranks


def by_size(results: Sequence[Result]) -> list[Measure]:
    """The scores at each size, and the false alarms on healthy jobs."""
    found: dict[int, list[Result]] = {}
    for one in sorted(results, key=size_of):
        found.setdefault(size_of(one), []).append(one)
    return [Measure(f"{size:,} ranks", _at_size(some), "-") for size, some in found.items()]


def _at_size(results: Sequence[Result]) -> str:
    parts = []
    if any(one.score.found is not None for one in results):
        parts.append(culprit_and_cause(results))
    alarms = [one.score.alarms > 0 for one in results if is_healthy(one) and not one.failed]
    if alarms:
        parts.append(f"false alarms on healthy jobs {in_words(rate(alarms))}")
    return ", ".join(parts) or "no job counts for a score"


def rate_of_alarms(healthy: Sequence[Result]) -> Rate:
    """The share of healthy jobs in which somebody was accused."""
    return rate([one.score.alarms > 0 for one in healthy])


def hangs_reported(results: Iterable[Result]) -> Confusion:
    """How well jobs that hang are distinguished from jobs that do not."""
    scores = [one.score for one in results]
    return Confusion(sum(one.hangs and one.said_hang for one in scores),
                     sum(one.hangs and not one.said_hang for one in scores),
                     sum(one.said_hang and not one.hangs for one in scores))  # fmt: skip


def hangs_found(results: Iterable[Result]) -> Confusion:
    """The same, but a hang counts as found only if the right rank is named."""
    scores = [one.score for one in results]
    return Confusion(sum(one.found_hang for one in scores),
                     sum(one.hangs and not one.found_hang for one in scores),
                     sum(one.said_hang and not one.found_hang for one in scores))  # fmt: skip


@dataclass(frozen=True)
class Measure:
    """One measure of a paper: our value in words, and the value that the paper reports."""

    what: str
    ours: str
    theirs: str


def culprit_and_cause(results: Sequence[Result]) -> str:
    """How often the culprit and the cause were right."""
    found = rate([one.score.found for one in results])
    cause = rate([one.score.cause for one in results])
    return f"culprit {in_words(found)}, cause {in_words(cause)}"


def in_words(one: Rate) -> str:
    """`75 % (6 of 8; 41 to 93 %)`."""
    if one.value is None:
        return "n/a"
    low, high = one.interval
    return (
        f"{100 * one.value:.0f} % ({one.hits} of {one.of}; {100 * low:.0f} to {100 * high:.0f} %)"
    )


def f1_in_words(one: Confusion) -> str:
    """`F1 0.80 (8 found, 2 missed, 2 false)`."""
    value = "n/a" if one.f1 is None else f"{one.f1:.2f}"
    return f"F1 {value} ({one.hits} found, {one.misses} missed, {one.false} false)"
