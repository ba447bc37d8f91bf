"""Scores per row of the table, and the measures that the papers use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stepscope.evaluate.intervals import Confusion, Median, Rate, median, rate
from stepscope.evaluate.runner import Result
from stepscope.evaluate.suite import HEALTHY

TABLE_6 = "ARGUS Table 6: "
VENUS = "VenusTrace: "
HOLMES = "Holmes: abnormal"


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
        parts.append(_both(results))
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


def slow_ranks(results: Iterable[Result]) -> Confusion:
    """VenusTrace's measure of slowdowns: a verdict is right, or false, and a fault missed."""
    hits = misses = false = 0
    for one in results:
        said = any(verdict.kind == "slowdown" for verdict in one.said)
        hits += bool(one.score.found)
        misses += one.score.found is False
        false += said and not one.score.found
    return Confusion(hits, misses, false)


@dataclass(frozen=True)
class Measure:
    """A paper's measure: ours in words, theirs as reported."""

    what: str
    ours: str
    theirs: str


def of_holmes(results: Sequence[Result]) -> list[Measure]:
    """Localisation accuracy: irregularities whose device, or its ranks, come first."""
    mine = [one for one in results if HOLMES in one.family and one.score.costly]
    found = _grouped(mine, lambda one: f"{one.ranks:,} GPUs", _HOLMES_GPUS)
    found += _grouped(mine, lambda one: f"{one.dimensions}D parallelism", _HOLMES_DIMENSIONS)
    found += _grouped(mine, _type_of, _HOLMES_TYPES)
    return [Measure(what, in_words(rate([one.score.found for one in some])), theirs)
            for what, some, theirs in found]  # fmt: skip


def _type_of(one: Result) -> str:
    return (one.form or one.row).rpartition(" ")[2]


_HOLMES_GPUS = {"2,048 GPUs": "97.2 %", "8,192 GPUs": "88.2 %"}
"""Section 5.1.2, figure 15(b)."""
_HOLMES_DIMENSIONS = {"3D parallelism": "median 94.6 %", "4D parallelism": "median 89.6 %"}
"""Section 5.1.2, figure 15(c)."""
_HOLMES_TYPES = {"spike": "90.7 %", "fluctuation": "93.0 %", "degradation": "93.2 %"}
"""Appendix E, figure 24."""


_VENUS_PLACES = ("forward", "backward", "transfer")
"""Section 5.1: the positions at which VenusTrace emulated faults."""


def of_venustrace(results: Sequence[Result]) -> list[Measure]:
    """F1 over hangs and slowdowns at random positions, and the healthy jobs of the suite.

    Section 5.2, figure 8.
    """
    mine = [one for one in results
            if one.family.startswith(VENUS) and _type_of(one) in _VENUS_PLACES]  # fmt: skip
    healthy = [one for one in results if is_healthy(one)]
    stuck = [one for one in mine if one.score.hangs]
    slow = [one for one in mine if not one.score.hangs]
    found = []
    if stuck:
        found.append(Measure("hangs", f1_in_words(hangs_found([*stuck, *healthy])), "F1 1.00"))
    if slow:
        found.append(Measure("slowdowns", f1_in_words(slow_ranks([*slow, *healthy])), "F1 0.95"))
    return found


def of_argus(results: Sequence[Result]) -> list[Measure]:
    """The rows of Table 6: localised, and with the right cause."""
    found: dict[str, list[Result]] = {}
    for one in results:
        for part in one.family.split(";"):
            if part.strip().startswith(TABLE_6):
                found.setdefault(part.strip().removeprefix(TABLE_6), []).append(one)
    return [Measure(what, _both(some), "localised, no figure") for what, some in found.items()]


def _both(results: Sequence[Result]) -> str:
    found = rate([one.score.found for one in results])
    cause = rate([one.score.cause for one in results])
    return f"culprit {in_words(found)}, cause {in_words(cause)}"


def _grouped(
    results: Sequence[Result], key: Callable[[Result], str], theirs: Mapping[str, str]
) -> list[tuple[str, list[Result], str]]:
    found: dict[str, list[Result]] = {}
    for one in sorted(results, key=lambda one: (one.ranks, one.dimensions)):
        found.setdefault(key(one), []).append(one)
    names = sorted(found, key=_by_number)
    return [(name, found[name], theirs.get(name, "not reported")) for name in names]


def _by_number(name: str) -> tuple[float, str]:
    digits = "".join(one for one in name if one.isdigit())
    return (float(digits) if digits else 0.0, name)


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
