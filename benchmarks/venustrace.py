"""VenusTrace's evaluation on simulated jobs: hangs and slowdowns at random positions (figure 8).

    python benchmarks/venustrace.py [--jobs 200] [--seed 0]

As in section 5.1: a hang is an endless delay; a slowdown of 50 ms to 30 s is added to the forward
or backward computation or a transfer of a random rank and microbatch; forward takes about 40 ms.
Half of the layouts share layers between ranks, half interleave stages. A slowdown counts only if
the step lost 2 % (the paper: "performance degradation as the ground truth"). Healthy jobs are as
many as slow ones. Prints F1 of each method by who is named (both ends of a transfer count as one
name, and so does the group of a collective), and how many hangs of passes are located to pass and
microbatch.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from stepscope.diagnose.finding import Diagnosis, Place, Verdict
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.settings import Settings
from stepscope.simulate.parse import parse_fault
from stepscope.simulate.run import Simulation, simulate
from stepscope.simulate.scenario import Parallelism, Scenario
from stepscope.window import Window

METHODS = ("default", "venustrace", "venustrace-published")
STEPS, AT = 24, 14
LAYOUTS = (
    Parallelism(pp=4), Parallelism(pp=4, tp=2), Parallelism(pp=4, chunks=2),
    Parallelism(pp=4, tp=2, chunks=2),
)  # fmt: skip
COSTS = 0.02
"""Of the step with the fault: less is no slowdown."""


@dataclass
class Tally:
    """Right and wrong names, and what was missed."""

    found: int = 0
    wrong: int = 0
    missed: int = 0
    places: int = 0
    passes: int = 0

    @property
    def f1(self) -> float:
        whole = 2 * self.found + self.wrong + self.missed
        return 2 * self.found / whole if whole else 1.0

    def __str__(self) -> str:
        return f"F1 {self.f1:.3f} ({self.found} found, {self.wrong} wrong, {self.missed} missed)"


@dataclass
class Case:
    """One simulated job with at most one fault."""

    rank: int
    at: str
    microbatch: int
    job: Simulation = field(repr=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for kind, cases, right in (
        ("hangs", hangs(arguments.jobs, arguments.seed), names_hang),
        ("slowdowns", slowdowns(arguments.jobs, arguments.seed), names_slow),
        ("healthy", healthy(arguments.jobs, arguments.seed), lambda *_: False),
    ):
        print(kind)
        for method, tally in scored(cases, right).items():
            places = f", {tally.places} of {tally.passes} located" if kind == "hangs" else ""
            print(f"  {method:22} {tally}{places}", flush=True)


def cases_at(jobs: int, seed: int, places: tuple[str, ...], fault: str) -> Iterator[Case]:
    random = np.random.default_rng(seed)
    for number in range(jobs):
        layout = LAYOUTS[number % len(LAYOUTS)]
        rank, microbatch = int(random.integers(16)), int(random.integers(8))
        at, ms = str(random.choice(places)), float(np.exp(random.uniform(*np.log((50, 30_000)))))
        text = fault.format(rank=rank, at=at, microbatch=microbatch, ms=round(ms, 1))
        yield Case(rank, at, microbatch, simulate(Scenario(
            ranks=16, steps=STEPS, seed=seed + number, parallelism=layout,
            faults=(parse_fault(text),) if text else (),
        )))  # fmt: skip


def hangs(jobs: int, seed: int) -> Iterator[Case]:
    places = ("forward", "backward", "host", "transfer")
    yield from cases_at(jobs, seed, places, f"hang:rank={{rank}},at={{at}},from={AT},"
                        "microbatch={microbatch}")  # fmt: skip


def slowdowns(jobs: int, seed: int) -> Iterator[Case]:
    """Those that made the step longer; others cost nothing and must not be named."""
    yield from cases_at(jobs, seed, ("forward", "backward", "transfer"),
                        f"delay:rank={{rank}},at={{at}},from={AT},until={AT + 1},"
                        "microbatch={microbatch},ms={ms}")  # fmt: skip


def healthy(jobs: int, seed: int) -> Iterator[Case]:
    yield from cases_at(jobs, seed + 10_000, ("forward",), "")


def scored(cases: Iterator[Case], right: Callable[[Case, Verdict], bool]) -> dict[str, Tally]:
    tallies = {method: Tally() for method in METHODS}
    for case in cases:
        expected = is_expected(case)
        for method, tally in tallies.items():
            found = diagnose(case.job.window, Settings(methods=(method,)))
            count(tally, case, found, expected, right)
    return tallies


def is_expected(case: Case) -> bool:
    """Whether the fault did the job any harm: a hang, or a step that lost 2 %."""
    known = case.job.truth.faults
    return any(one.kind == "hang" or (one.lost_fraction or 0.0) >= COSTS for one in known)


def count(tally: Tally, case: Case, found: Diagnosis, expected: bool,
          right: Callable[[Case, Verdict], bool]) -> None:  # fmt: skip
    names = Counter(right(case, one) for one in found.accused)
    tally.wrong += names[False] + (names[True] if not expected else 0)
    tally.found += int(expected and names[True] > 0)
    tally.missed += int(expected and not names[True])
    tally.passes += int(case.at != "transfer" and expected)
    tally.places += int(any(is_place(case, one) for each in found.accused for one in each.places))


def is_place(case: Case, place: Place) -> bool:
    """Whether it is where the fault is; of a host the pass was drawn by the simulator."""
    phase = place.phase if case.at == "host" else f"{case.at}-compute"
    return (place.rank, place.microbatch, place.phase) == (case.rank, case.microbatch, phase)


def names_hang(case: Case, verdict: Verdict) -> bool:
    """The rank; of a collective whose data does not move, its group."""
    if verdict.kind != "hang" or (case.at == "transfer") != (verdict.cause == "network"):
        return False
    return verdict.ranks == (case.rank,) or (
        not verdict.ranks and case.rank in members(case.job.window, verdict.group)
    )


def names_slow(case: Case, verdict: Verdict) -> bool:
    """The rank; of a transfer its two ends, or the group that exchanges gradients."""
    if verdict.ranks == (case.rank,):
        return True
    if case.at != "transfer" or verdict.cause != "network":
        return False
    return case.rank in verdict.ranks or case.rank in members(case.job.window, verdict.group)


def members(window: Window, group: str | None) -> tuple[int, ...]:
    found = window.job.group(group) if group else None
    return found.ranks if found is not None else ()


if __name__ == "__main__":
    main()
