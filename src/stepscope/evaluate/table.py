"""Scores per row of the table, by size, and of hangs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepscope.evaluate.intervals import Confusion, Median, Rate, median, rate
from stepscope.evaluate.runner import Result
from stepscope.evaluate.suite import HEALTHY


@dataclass(frozen=True)
class Row:
    """One kind of trouble. Rates are over its costly jobs, `accused` over all."""

    name: str
    family: str
    jobs: int
    costly: int
    found: Rate
    complete: Rate
    cause: Rate
    device: Rate
    alarms: Rate
    """Of the jobs in which nothing deserves a verdict, those that got one."""
    accused: Rate
    """Jobs in which a rank is accused that is no culprit."""
    steps: Median | None
    """To verdict, where the culprit was found."""
    seconds: Median | None
    """Of computing, for one diagnosis."""
    failed: int = 0
    """Jobs that simulator or diagnosis gave up: nothing was found in them, and nobody accused."""


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
    """Whether nothing was put into it."""
    return one.row.startswith(HEALTHY)


def size_of(one: Result) -> int:
    """The number of ranks that it counts for."""
    return one.size or one.ranks


def by_size(results: Sequence[Result]) -> list[Measure]:
    """What was right at each size, and what was said of healthy jobs."""
    found: dict[int, list[Result]] = {}
    for one in sorted(results, key=size_of):
        found.setdefault(size_of(one), []).append(one)
    return [Measure(f"{size:,} ranks", _at_size(some), "-") for size, some in found.items()]


def _at_size(results: Sequence[Result]) -> str:
    parts = []
    if any(one.score.found is not None for one in results):
        parts.append(culprit_and_cause(results))
    quiet = [one.score.alarms > 0 for one in results if is_healthy(one) and not one.failed]
    if quiet:
        parts.append(f"healthy jobs accused {in_words(rate(quiet))}")
    return ", ".join(parts) or "nothing to be judged by"


def hangs_told(results: Iterable[Result]) -> Confusion:
    """Whether jobs that hang, and no others, are said to."""
    scores = [one.score for one in results]
    return Confusion(sum(one.hangs and one.said_hang for one in scores),
                     sum(one.hangs and not one.said_hang for one in scores),
                     sum(one.said_hang and not one.hangs for one in scores))  # fmt: skip


def hangs_found(results: Iterable[Result]) -> Confusion:
    """The same where a hang counts as found only if its rank is named."""
    scores = [one.score for one in results]
    return Confusion(sum(one.found_hang for one in scores),
                     sum(one.hangs and not one.found_hang for one in scores),
                     sum(one.said_hang and not one.found_hang for one in scores))  # fmt: skip


@dataclass(frozen=True)
class Measure:
    """A paper's measure: ours in words, theirs as reported."""

    what: str
    ours: str
    theirs: str


def culprit_and_cause(results: Sequence[Result]) -> str:
    """How often each of them was right."""
    found = rate([one.score.found for one in results])
    cause = rate([one.score.cause for one in results])
    return f"culprit {in_words(found)}, cause {in_words(cause)}"


def in_words(one: Rate) -> str:
    """`75 % (6 of 8; 41 to 93 %)`."""
    if one.value is None:
        return "none"
    low, high = one.interval
    return (
        f"{100 * one.value:.0f} % ({one.hits} of {one.of}; {100 * low:.0f} to {100 * high:.0f} %)"
    )


def f1_in_words(one: Confusion) -> str:
    """`F1 0.80 (8 found, 2 missed, 2 false)`."""
    value = "none" if one.f1 is None else f"{one.f1:.2f}"
    return f"F1 {value} ({one.hits} found, {one.misses} missed, {one.false} false)"
