"""The measures that the papers report, computed for our jobs and set beside the papers' values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from stepscope.diagnose.detect.published.holmes import DELTA
from stepscope.evaluate.argus import CASE_ROWS, TABLE_6
from stepscope.evaluate.intervals import Confusion, rate
from stepscope.evaluate.runner import Result
from stepscope.evaluate.table import (
    Measure,
    culprit_and_cause,
    f1_in_words,
    hangs_found,
    in_words,
    is_healthy,
    size_of,
)

VENUS = "VenusTrace: "
HOLMES = "Holmes: abnormal"


def slow_ranks(results: Iterable[Result]) -> Confusion:
    """VenusTrace's measure of slowdowns: hits, missed faults and false verdicts."""
    hits = misses = false = 0
    for one in results:
        said = any(verdict.kind == "slowdown" for verdict in one.said)
        hits += bool(one.score.found)
        misses += one.score.found is False
        false += said and not one.score.found
    return Confusion(hits, misses, false)


def of_holmes(results: Sequence[Result]) -> list[Measure]:
    """Localisation accuracy: irregularities whose device, or its ranks, the first verdict names.

    As in section 4.1, a step is irregular if it takes `DELTA` times as long as usual.
    """
    irregular = [one for one in results if HOLMES in one.family and one.score.costly
                 and (one.slowdown or 0.0) >= DELTA]  # fmt: skip
    found = _grouped(irregular, lambda one: f"{one.ranks:,} GPUs", _HOLMES_GPUS)
    found += _grouped(irregular, lambda one: f"{one.dimensions}D parallelism", _HOLMES_DIMENSIONS)
    found += _grouped(irregular, _type_of, _HOLMES_TYPES)
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
    """F1 over hangs and slowdowns at random positions, together with the suite's healthy jobs.

    Section 5.2, figure 8.
    """
    faulty = [one for one in results
              if one.family.startswith(VENUS) and _type_of(one) in _VENUS_PLACES]  # fmt: skip
    healthy = [one for one in results if is_healthy(one)]
    stuck = [one for one in faulty if one.score.hangs]
    slow = [one for one in faulty if not one.score.hangs]
    found = []
    if stuck:
        found.append(Measure("hangs", f1_in_words(hangs_found([*stuck, *healthy])), "F1 1.00"))
    if slow:
        found.append(Measure("slowdowns", f1_in_words(slow_ranks([*slow, *healthy])), "F1 0.95"))
    return found


def of_argus(results: Sequence[Result]) -> list[Measure]:
    """The rows of Table 6: how often the culprit and the cause were right."""
    found: dict[str, list[Result]] = {}
    for one in results:
        for part in one.family.split(";"):
            if part.strip().startswith(TABLE_6):
                found.setdefault(part.strip().removeprefix(TABLE_6), []).append(one)
    return [
        Measure(what, culprit_and_cause(some), "localised, no rate reported")
        for what, some in found.items()
    ]


def of_argus_cases(results: Sequence[Result]) -> list[Measure]:
    """The case studies at each size, and whether they got exactly one verdict."""
    found: dict[tuple[str, int], list[Result]] = {}
    for one in sorted(results, key=size_of):
        if one.row in CASE_ROWS and not one.failed:
            found.setdefault((one.row, size_of(one)), []).append(one)
    return [Measure(f"{row}, {size:,} ranks", f"{culprit_and_cause(some)}, {_verdicts(some)}",
                    _BY_ARGUS[row.split(":")[0]])
            for (row, size), some in sorted(found.items(), key=lambda one: one[0][0])]  # fmt: skip


_BY_ARGUS = {
    "case 1": "found by L2, 4,096 GPUs",
    "case 2": "group found by L3, machines by hand, 512 GPUs",
    "case 3": "found by hand in L4, 4,096 GPUs",
    "case 4": "alert by L1, found by hand in L4, 4,096 GPUs",
    "case 5": "found by L2, 12,960 GPUs",
}  # fmt: skip
"""Section 9."""


def _verdicts(results: Sequence[Result]) -> str:
    once = rate([len(one.said) == 1 for one in results if one.score.costly])
    return f"exactly one verdict {in_words(once)}"


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
