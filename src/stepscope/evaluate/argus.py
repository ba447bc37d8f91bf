"""Suite `argus`: the faults and case studies of the ARGUS paper, at three sizes.

It has the rows of the paper's Table 6, at ranks, hosts and switches drawn by seed; its five case
studies (section 9) with the paper's parallelism, location and severity; and four kinds of healthy
jobs. Most healthy jobs are small: to measure a false alarm rate of 1 %, hundreds are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stepscope.errors import UsageError
from stepscope.evaluate.draw import Form, all_forms
from stepscope.evaluate.layouts import dimensions_of, job, strategies_with
from stepscope.evaluate.suite import HEALTHY, LARGE, Case, Suite, first_that_fits, place, with_fault
from stepscope.simulate import Noise, Scenario, parse_fault
from stepscope.simulate.cases import CASES
from stepscope.simulate.parse import from_values
from stepscope.simulate.scenario import Detail

TABLE_6 = "ARGUS Table 6: "
DIMENSIONS = (3, 4, 2, 5)
LOOKS = (10, 20)
"""The paper's L1 needs twenty steps after a change; each repetition costs a diagnosis."""

KINDS = ("dense", "experts", "inputs", "clocks")
SKEWED = Noise(clock_offset_us=200_000.0, clock_drift_ppm=30.0)
"""Unsynchronised clocks: hundreds of milliseconds apart (docs/job-folder.md), with crystals that
drift as much as their specifications allow."""


@dataclass(frozen=True)
class Size:
    """The size of the jobs, and how many healthy ones there are."""

    ranks: int
    steps: int
    onset: int
    healthy: int
    """Healthy jobs of each of `KINDS`, per seed."""
    detail: Detail


@dataclass(frozen=True)
class CaseStudy:
    """A case study at one size: what differs from the case in `simulate.cases`."""

    ranks: int
    faults: tuple[str, ...]
    steps: int
    parallelism: Mapping[str, int] = field(default_factory=dict)


CASE_ROWS: Mapping[str, str] = {
    "case 1: two slow replicas": "argus-1",
    "case 2: a slow group": "argus-2",
    "case 3: bubbles hide it": "argus-3",
    "case 4: rare compilation": "argus-4",
    "case 5: a misleading event": "argus-5",
}


def _slow_host(first: int, onset: int) -> tuple[str, ...]:
    """Case 5: experts compute 5.7 times slower on eight ranks, and an unrelated port goes down."""
    ranks = "+".join(str(rank) for rank in range(first, first + 8))
    return (f"gpu_slow:ranks={ranks},factor=5.7,only=moe_experts,decoy=nic_port_down,from={onset}",)


CASE_STUDIES: Mapping[str, Mapping[int, CaseStudy]] = {
    # replicas 656 and 657 of 2,048, and the same relative position in smaller jobs
    "argus-1": {
        64: CaseStudy(64, ("gpu_slow:ranks=40+41+42+43,factor=150,from=50",), 100),
        512: CaseStudy(512, ("gpu_slow:ranks=164+165+166+167,factor=150,from=30",), 70),
        4096: CaseStudy(4096, ("gpu_slow:ranks=1312+1313+1314+1315,factor=150,from=26",), 50),
    },
    # 512 is the paper's size
    "argus-2": {
        64: CaseStudy(64, ("adapter_pcie_slow:ranks=7+15",), 70),
        512: CaseStudy(512, ("adapter_pcie_slow:ranks=7+15",), 70),
        4096: CaseStudy(4096, ("adapter_pcie_slow:ranks=7+15",), 50),
    },
    # 4,096 and the rank are the paper's; fewer steps, because each has four times as many
    # operators as in the other cases
    "argus-3": {
        size: CaseStudy(size, (f"gpu_slow:rank={rank},factor=1.9,only=backward-compute,seen=no",),
                     steps)
        for size, rank, steps in ((64, 60, 50), (512, 468, 40), (4096, 3760, 30))
    },
    # it compiles in three steps of a hundred: a shorter job might not compile at all
    "argus-4": {
        size: CaseStudy(size, (f"jit_compile:rank={rank}",), 100)
        for size, rank in ((64, 20), (512, 84), (4096, 688))
    },
    # nine stages; a host within the group of 32 experts that begins at replica 256, or 32
    "argus-5": {
        64: CaseStudy(144, _slow_host(112, 50), 100),
        512: CaseStudy(576, _slow_host(496, 30), 70, {"ep": 32}),
        4096: CaseStudy(4608, _slow_host(3856, 26), 50, {"ep": 32}),
    },
}  # fmt: skip
"""By size: the paper's locations at the paper's size, else the same relative position."""
GROUPS: Mapping[str, str] = {"argus-2": "edp-7"}
"""The group where the paper's own diagnosis ended: engineers then found two machines in it."""


@dataclass(frozen=True)
class ArgusSuite(Suite):
    """Every row at every size, for every seed."""

    sizes: tuple[Size, ...]

    @property
    def by_wire(self) -> bool:
        return max(size.ranks for size in self.sizes) < LARGE

    @property
    def rows(self) -> Sequence[str]:
        return (*(f"{HEALTHY} {kind}" for kind in KINDS), *CASE_ROWS, *self._forms)

    def cases(self, row: str, seed: int) -> Iterator[Case]:
        for size in self.sizes:
            if row.startswith(HEALTHY):
                yield from _healthy(size, row, seed)
            elif row in CASE_ROWS:
                yield _case_study(size, row, seed)
            else:
                yield from self._table_6(size, row, seed)

    @property
    def _forms(self) -> Mapping[str, Form]:
        return {one.name: one for one in all_forms() if TABLE_6 in one.family}

    def _table_6(self, size: Size, row: str, seed: int) -> Iterator[Case]:
        def make(form: Form, dimensions: int) -> Case:
            scenario = _job(size, row, seed, seed, dimensions)
            return replace(with_fault(row, form, scenario, size.onset, dimensions), looks=LOOKS)

        yield from first_that_fits([self._forms[row]], _layouts(row, seed), make)


def _healthy(size: Size, row: str, seed: int) -> Iterator[Case]:
    for number in range(size.healthy):
        turn = seed * size.healthy + number
        kind, dimensions = row.split()[1], _layouts(row, turn)[0]
        if kind == "experts":
            dimensions = max(dimensions, 4)
        scenario = _of_kind(kind, _job(size, row, turn, 1000 * seed + number, dimensions))
        yield Case(row, "nothing is wrong", replace(scenario, name=HEALTHY),
                   dimensions_of(scenario), looks=LOOKS)  # fmt: skip


def _of_kind(kind: str, scenario: Scenario) -> Scenario:
    if kind == "clocks":
        return replace(scenario, noise=SKEWED)
    if kind == "experts":
        return scenario
    work = replace(scenario.workload, kind="variable" if kind == "inputs" else "dense")
    return replace(scenario, workload=work, parallelism=replace(scenario.parallelism, ep=1))


def _case_study(size: Size, row: str, seed: int) -> Case:
    """A case study: seeds change only its noise."""
    name = CASE_ROWS[row]
    case, study = CASES[name], CASE_STUDIES[name].get(size.ranks)
    if study is None:
        raise UsageError(f"{name} is not defined for {size.ranks} ranks")
    values = dict(case.values)
    parts = {**values["parallelism"], **study.parallelism}
    scenario = from_values({**values, "name": name, "seed": seed, "ranks": study.ranks,
                            "steps": study.steps, "detail": size.detail, "parallelism": parts,
                            "fault": [parse_fault(fault) for fault in study.faults]})  # fmt: skip
    return Case(row, case.source, scenario, dimensions_of(scenario), name, LOOKS,
                GROUPS.get(name, ""), size.ranks)  # fmt: skip


def _layouts(row: str, turn: int) -> list[int]:
    """All dimensions, starting at a position that depends on the row and the turn."""
    first = place(row, "layout", turn) % len(DIMENSIONS)
    return [*DIMENSIONS[first:], *DIMENSIONS[:first]]


def _job(size: Size, row: str, turn: int, seed: int, dimensions: int) -> Scenario:
    strategies = strategies_with(dimensions)
    strategy = strategies[place(row, "way", turn) % len(strategies)]
    return job(size.ranks, size.steps, seed, dimensions, strategy, size.detail)
