"""Which jobs a suite is made of. Equal names and seeds give equal jobs."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from stepscope.errors import UsageError
from stepscope.evaluate.draw import Form, all_forms, draw
from stepscope.simulate import Fault, Hardware, Parallelism, Scenario, Workload
from stepscope.simulate.scenario import Detail
from stepscope.simulate.world import World

HEALTHY = "healthy"
TWO = "two faults at once"
AFTER = "hang after a slowdown"


@dataclass(frozen=True)
class Suite:
    """Sizes and layouts change from seed to seed, in these orders.

    Faults begin after `onset` steps: L1 asks for twenty steps on either side of a change, and the
    first five are warm-up.
    """

    name: str
    help: str
    ranks: tuple[int, ...]
    dimensions: tuple[int, ...]
    """How many of dp, tp, pp, ep and cp are above 1."""
    steps: int
    onset: int
    seeds: int
    healthy: int
    """Healthy jobs per seed."""
    every_form: bool = True
    """Whether each form of a fault has a row, or they take turns."""
    detail: Detail = "auto"


SUITES: Mapping[str, Suite] = {
    one.name: one
    for one in (
        Suite("smoke", "every fault once on 16 ranks", (16,), (3,), 56, 27, 1, 4,
              every_form=False, detail="normal"),
        Suite("standard", "every form of every fault on 64 to 512 ranks", (64, 128, 256, 512),
              (3, 4, 2, 5, 1), 70, 30, 4, 10),
        Suite("large", "every fault on 2,048 to 10,240 ranks", (2048, 4096, 8192, 10240),
              (3, 4, 5), 50, 26, 4, 1, every_form=False),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One job to diagnose. `row` is the line of the table that it counts in."""

    row: str
    family: str
    scenario: Scenario
    dimensions: int
    form: str = ""
    """Which form of the fault this is, where the row holds several."""

    @property
    def id(self) -> str:
        one = self.scenario
        return f"{self.row} / {one.ranks} ranks, {self.dimensions}D / seed {one.seed}"


@dataclass(frozen=True)
class Chosen:
    """The jobs of a suite, and which forms of faults fit none of them."""

    cases: tuple[Case, ...]
    unfit: tuple[str, ...]


def choose(suite: Suite, seeds: Sequence[int], families: Sequence[str] = ()) -> Chosen:
    """All jobs of a suite, or of the rows that a word of `families` begins.

    Raises:
        UsageError: a word begins no row.
    """
    forms = _rows(suite)
    wanted = _wanted([HEALTHY, *forms, TWO, AFTER], families)
    cases: list[Case] = []
    for row in wanted:
        cases += _cases(suite, seeds, row, forms)
    fit = {case.row.split()[0] for case in cases}
    return Chosen(tuple(cases), tuple(row for row in wanted if row.split()[0] not in fit))


Forms = Mapping[str, tuple[Form, ...]]
"""Rows of the table, and what counts in them."""


def _rows(suite: Suite) -> Forms:
    forms = all_forms()
    if suite.every_form:
        return {form.name: (form,) for form in forms}
    names = dict.fromkeys(form.fault for form in forms)
    return {name: tuple(form for form in forms if form.fault == name) for name in names}


def _wanted(rows: Sequence[str], families: Sequence[str]) -> list[str]:
    for word in families:
        if not any(row.startswith(word) for row in rows):
            names = dict.fromkeys(row.split()[0] for row in rows[1:-2])
            raise UsageError(f"no fault is called {word}; there are {HEALTHY}, "
                             f"{', '.join(names)}, {TWO}, {AFTER}")  # fmt: skip
    return [row for row in rows if not families or any(row.startswith(one) for one in families)]


def _cases(suite: Suite, seeds: Sequence[int], row: str, forms: Forms) -> Iterator[Case]:
    for at, seed in enumerate(seeds):
        if row == HEALTHY:
            yield from _healthy(suite, at, seed)
            continue
        tries = itertools.product(_layouts(suite, at), _turn(forms.get(row, ()), at) or [None])
        for dimensions, form in tries:
            try:
                yield _faulty(suite, at, seed, row, form, dimensions)
                break
            except UsageError:
                continue  # another layout, as one with experts or a pipeline


def _turn(forms: Sequence[Form], at: int) -> list[Form | None]:
    """All of them, beginning with the one whose turn it is."""
    first = at % len(forms) if forms else 0
    return [*forms[first:], *forms[:first]]


def _layouts(suite: Suite, at: int) -> list[int]:
    """The turn of this seed first, then all others."""
    mine = suite.dimensions[at % len(suite.dimensions)]
    return [mine, *(one for one in (3, 4, 2, 5, 1) if one != mine)]


def _healthy(suite: Suite, at: int, seed: int) -> Iterator[Case]:
    """Each with a seed of its own; in turn dense, with experts, and with inputs of any length."""
    for number in range(suite.healthy):
        turn = at * suite.healthy + number
        scenario, dimensions = _job(suite, turn, 1000 * seed + number,
                                    suite.dimensions[turn % len(suite.dimensions)])  # fmt: skip
        if number % 3 == 2 and scenario.workload.kind == "dense":
            scenario = replace(scenario, workload=Workload(kind="variable"))
        yield Case(HEALTHY, "nothing is wrong", replace(scenario, name=HEALTHY), dimensions)


def _faulty(suite: Suite, at: int, seed: int, row: str, form: Form | None, dimensions: int) -> Case:
    job, dimensions = _job(suite, at, seed, dimensions)
    source = np.random.default_rng([seed, zlib.crc32(row.encode())])
    if form is None:
        faults = _several(suite, row, job, source)
        family = "composed: " + " + ".join(one.name for one in faults)
    else:
        faults, family = (draw(form, job, suite.onset, source),), form.family
    scenario = replace(job, name=row.replace(" ", "-"), faults=faults)
    return Case(row, family, scenario, dimensions, row if form is None else form.name)


def _several(
    suite: Suite, row: str, job: Scenario, source: np.random.Generator
) -> tuple[Fault, ...]:  # fmt: skip
    slow = _any("slowdown", job, suite.onset, source)
    if row == TWO:
        return slow, _any("slowdown", job, suite.onset, source, besides=slow.name)
    return slow, _any("hang", job, (suite.onset + suite.steps) // 2, source)


def _any(
    kind: str, job: Scenario, onset: int, source: np.random.Generator, besides: str = ""
) -> Fault:
    """A fault of some ranks, whichever fits the job.

    Raises:
        UsageError: none does.
    """
    forms = all_forms()
    for at in source.permutation(len(forms)):
        with suppress(UsageError):
            fault = draw(forms[int(at)], job, onset, source)
            blame = fault.blame(World(job))
            if blame.kind == kind and blame.ranks and fault.name != besides:
                return fault
    raise UsageError(f"no {kind} fits {job.ranks} ranks")


def _job(suite: Suite, at: int, seed: int, dimensions: int) -> tuple[Scenario, int]:
    ranks = suite.ranks[at % len(suite.ranks)]
    per_host = 4 if ranks < 64 else 8
    hosts = ranks // per_host
    parallelism = layout(ranks, dimensions)
    kind = "moe" if parallelism.ep > 1 else "dense"
    scenario = Scenario(
        ranks=ranks, steps=suite.steps, seed=seed, parallelism=parallelism, detail=suite.detail,
        workload=Workload(kind=kind),  # type: ignore[arg-type]
        # small jobs have a fabric of two tiers as well
        hardware=Hardware(gpus_per_host=per_host, nics_per_host=per_host,
                          hosts_per_leaf=max(1, min(16, hosts // 4))),
    )  # fmt: skip
    return scenario, dimensions


def layout(ranks: int, dimensions: int) -> Parallelism:
    """Data parallelism, and in this order tensors, pipeline, experts, context."""
    wide = 8 if ranks >= 1024 else 4 if ranks >= 64 else 2
    return Parallelism(
        tp=wide if dimensions >= 2 else 1, pp=wide if dimensions >= 3 else 1,
        ep=2 if dimensions >= 4 else 1, cp=2 if dimensions >= 5 else 1,
    )  # fmt: skip
