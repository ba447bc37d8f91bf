"""Which jobs a suite is made of. Equal names and seeds give equal jobs, whatever else there is."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from stepscope.errors import UsageError
from stepscope.evaluate.draw import Form, Key, all_forms, draw, shuffled
from stepscope.simulate import Fault, Hardware, Parallelism, Scenario, Workload
from stepscope.simulate.scenario import Detail, Sharding
from stepscope.simulate.world import World

PLAIN, INTERLEAVED = "zero1", "interleaved"
WAYS = (PLAIN, INTERLEAVED, "fsdp", "ddp")
"""How ranks work together, beside their grid: optimizer states sharded, the same with a pipeline
of two chunks per stage, everything sharded, and nothing."""
HEALTHY = "healthy"
LOOKS = (2, 5, 10, 15, 20, 30, 45)
"""After so many steps with the fault a look is taken; time to verdict is one of these."""
TWO = "two faults at once"
AFTER = "hang after a slowdown"


@dataclass(frozen=True)
class Suite:
    """Sizes, layouts and `WAYS` change from seed to seed, in these orders. Each row begins layouts
    and ways at another place, so that a size is not always seen with the same layout.

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
    """Whether each form of a fault has a row, or one is drawn for each seed."""
    detail: Detail = "auto"
    looks: tuple[int, ...] = LOOKS
    """Each costs a diagnosis."""
    sizes_by_row: bool = False
    """Whether each row begins sizes at another place too, so that one seed sees all of them."""


SUITES: Mapping[str, Suite] = {
    one.name: one
    for one in (
        Suite("smoke", "every fault once on 16 ranks", (16,), (3,), 56, 27, 1, 4,
              every_form=False, detail="normal"),
        Suite("standard", "every form of every fault on 64 to 512 ranks", (64, 128, 256, 512),
              (3, 4, 2, 5, 1), 70, 30, 4, 10),
        Suite("large", "every fault on 2,048 to 10,240 ranks", (2048, 4096, 8192, 10240),
              (3, 4, 5), 50, 26, 4, 4, every_form=False, looks=(10,), sizes_by_row=True),
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
    looks: tuple[int, ...] = LOOKS

    @property
    def id(self) -> str:
        one = self.scenario
        layout = f"{one.ranks} ranks, {self.dimensions}D {way_of(one)}"
        return f"{self.row} / {layout} / seed {one.seed}"


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
    for seed in seeds:
        if row == HEALTHY:
            yield from _healthy(suite, seed)
            continue
        names = {form.name: form for form in forms.get(row, ())}
        tries = itertools.product(_layouts(suite, row, seed), shuffled(names, (seed, row)) or [""])
        for dimensions, name in tries:
            try:
                yield _faulty(suite, seed, row, names.get(name), dimensions)
                break
            except UsageError:
                continue  # another layout, as one with experts or a pipeline


def _layouts(suite: Suite, row: str, turn: int) -> list[int]:
    """The one whose turn it is first, then all others."""
    mine = suite.dimensions[_place(row, "layout", turn) % len(suite.dimensions)]
    return [mine, *(one for one in (3, 4, 2, 5, 1) if one != mine)]


def _place(row: str, what: str, turn: int) -> int:
    """Which of several has its turn, for each row from another one on."""
    return zlib.crc32(f"{what} of {row}".encode()) + turn


def _healthy(suite: Suite, seed: int) -> Iterator[Case]:
    """Each with a seed of its own; in turn dense, with experts, and with inputs of any length."""
    for number in range(suite.healthy):
        turn = seed * suite.healthy + number
        dimensions = _layouts(suite, HEALTHY, turn)[0]
        scenario = _job(suite, HEALTHY, turn, 1000 * seed + number, dimensions)
        if number % 3 == 2 and scenario.workload.kind == "dense":
            varied = replace(scenario.workload, kind="variable")
            scenario = replace(scenario, workload=varied)
        yield Case(HEALTHY, "nothing is wrong", replace(scenario, name=HEALTHY), dimensions,
                   looks=suite.looks)  # fmt: skip


def _faulty(suite: Suite, seed: int, row: str, form: Form | None, dimensions: int) -> Case:
    job = _job(suite, row, seed, seed, dimensions)
    if form is None:
        faults = _several(suite, row, job, (seed, row))
        family = "composed: " + " + ".join(one.name for one in faults)
    else:
        faults, family = (draw(form, job, suite.onset, (seed, row)),), form.family
    scenario = replace(job, name=row.replace(" ", "-"), faults=faults)
    shown = row if form is None else form.name
    return Case(row, family, scenario, dimensions, shown, suite.looks)


def _several(suite: Suite, row: str, job: Scenario, key: Key) -> tuple[Fault, ...]:
    slow = _any("slowdown", job, suite.onset, (*key, "first"))
    if row == TWO:
        return slow, _any("slowdown", job, suite.onset, (*key, "second"), besides=slow.name)
    return slow, _any("hang", job, (suite.onset + suite.steps) // 2, (*key, "second"))


def _any(kind: str, job: Scenario, onset: int, key: Key, besides: str = "") -> Fault:
    """A fault of some ranks, whichever fits the job.

    Raises:
        UsageError: none does.
    """
    forms = {form.name: form for form in all_forms()}
    for name in shuffled(forms, key):
        with suppress(UsageError):
            fault = draw(forms[name], job, onset, key)
            blame = fault.blame(World(job))
            if blame.kind == kind and blame.ranks and fault.name != besides:
                return fault
    raise UsageError(f"no {kind} fits {job.ranks} ranks")


def _job(suite: Suite, row: str, turn: int, seed: int, dimensions: int) -> Scenario:
    place = _place(row, "size", turn) if suite.sizes_by_row else turn
    ranks = suite.ranks[place % len(suite.ranks)]
    per_host = 4 if ranks < 64 else 8
    hosts = ranks // per_host
    parallelism = layout(ranks, dimensions, _way(row, turn, dimensions))
    kind = "moe" if parallelism.ep > 1 else "dense"
    return Scenario(
        ranks=ranks, steps=suite.steps, seed=seed, parallelism=parallelism, detail=suite.detail,
        # a stage has as many blocks in two chunks as in one
        workload=Workload(kind=kind, blocks=2 // parallelism.chunks),  # type: ignore[arg-type]
        # small jobs have a fabric of two tiers as well
        hardware=Hardware(gpus_per_host=per_host, nics_per_host=per_host,
                          hosts_per_leaf=max(1, min(16, hosts // 4))),
    )  # fmt: skip


def _way(row: str, turn: int, dimensions: int) -> str:
    """In turn; without a pipeline there is nothing to interleave."""
    ways = [one for one in WAYS if dimensions >= PIPELINE or one != INTERLEAVED]
    return ways[_place(row, "way", turn) % len(ways)]


PIPELINE = 3
"""From so many dimensions on there is a pipeline."""


def layout(ranks: int, dimensions: int, way: str = PLAIN) -> Parallelism:
    """Data parallelism, and in this order tensors, pipeline, experts, context."""
    wide = 8 if ranks >= 1024 else 4 if ranks >= 64 else 2
    return Parallelism(
        tp=wide if dimensions >= 2 else 1, pp=wide if dimensions >= PIPELINE else 1,
        ep=2 if dimensions >= 4 else 1, cp=2 if dimensions >= 5 else 1,
        chunks=2 if way == INTERLEAVED else 1, sharding=_SHARDING.get(way, "zero1"),
    )  # fmt: skip


_SHARDING: Mapping[str, Sharding] = {"fsdp": "fsdp", "ddp": "ddp"}


def way_of(scenario: Scenario) -> str:
    """One of `WAYS`."""
    one = scenario.parallelism
    return INTERLEAVED if one.chunks > 1 else one.sharding
