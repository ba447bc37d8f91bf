"""The suites, and how the jobs to run are selected from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepscope.errors import UsageError
from stepscope.evaluate.argus import ArgusSuite, Size
from stepscope.evaluate.drawn import DrawnSuite
from stepscope.evaluate.suite import Case, Suite

SMOKE = DrawnSuite(
    "smoke", "every fault once on 16 ranks", 1, (16,), (3,), 56, 27, 4, every_form=False,
    detail="normal",
)  # fmt: skip
STANDARD = DrawnSuite(
    "standard", "every form of every fault on 64 to 512 ranks", 2, (64, 128, 256, 512),
    (3, 4, 2, 5, 1), 70, 30, 10,
)  # fmt: skip
ARGUS = ArgusSuite(
    "argus", "the faults and cases of ARGUS on 64, 512 and 4,096 ranks", 2,
    (Size(64, 70, 30, 25, "normal"), Size(512, 70, 30, 3, "normal"), Size(4096, 50, 26, 1, "auto")),
)  # fmt: skip
OFTEN = (2048, 4096, 2048, 2048, 8192, 2048, 4096, 2048, 10240, 2048, 4096, 2048, 8192, 4096, 2048,
         2048)  # fmt: skip
"""Large sizes appear less often, so that every size takes about the same share of the total time,
which is three quarters of an hour."""
LARGE = DrawnSuite(
    "large", "every fault on 2,048 to 10,240 ranks", 1, OFTEN, (3, 4, 5), 50, 26, 4,
    every_form=False, looks=(10,), sizes_by_row=True,
)  # fmt: skip
SUITES: Mapping[str, Suite] = {suite.name: suite for suite in (SMOKE, STANDARD, ARGUS, LARGE)}


@dataclass(frozen=True)
class Chosen:
    """The selected jobs of a suite, and the selected rows that fit none of its jobs."""

    cases: tuple[Case, ...]
    unfit: tuple[str, ...]


def choose(
    suite: Suite, seeds: Sequence[int], families: Sequence[str] = (), sizes: Sequence[int] = ()
) -> Chosen:
    """Selects jobs by row (any row that starts with a word of `families`) and by size; empty: all.

    Raises:
        UsageError: no row starts with one of the words, or the suite has no job of a given size.
    """
    wanted = _wanted(suite.rows, families)
    found = {row: [case for seed in seeds for case in suite.cases(row, seed)] for row in wanted}
    fit = {row.split()[0] for row, cases in found.items() if cases}
    unfit = tuple(row for row in wanted if row.split()[0] not in fit)
    cases = [case for some in found.values() for case in some]
    return Chosen(_of_sizes(suite, cases, sizes), unfit)


def _of_sizes(suite: Suite, cases: Sequence[Case], sizes: Sequence[int]) -> tuple[Case, ...]:
    there = {case.nominal for case in cases}
    for size in sizes:
        if size not in there:
            known = ", ".join(map(str, sorted(there)))
            raise UsageError(f"no such job of {suite.name} has {size} ranks; sizes: {known}")
    return tuple(case for case in cases if not sizes or case.nominal in sizes)


def _wanted(rows: Sequence[str], families: Sequence[str]) -> list[str]:
    for word in families:
        if not any(row.startswith(word) for row in rows):
            names = dict.fromkeys(row.split()[0] for row in rows)
            raise UsageError(f"unknown fault {word}; known: {', '.join(names)}")
    return [row for row in rows if not families or any(row.startswith(one) for one in families)]
