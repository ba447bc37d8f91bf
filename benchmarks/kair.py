"""KAIR on simulated jobs: its three stages, as printed, beside the default methods.

    python benchmarks/kair.py [--jobs 20] [--seed 0]

The paper has no table. It reports that KAIR "identified over 90 % of latent framework-level
stragglers" in production (section I), one case (section V.C: 26 machines of 8 GPUs, a graph
compiler that delays operators at an early stage), and names what makes stragglers (section II):
hardware, network, I/O, the partition of data. Each of these is simulated here, at random ranks,
with and without tensor parallel pairs (the case without), and as many healthy jobs.

Stage 1: the rank with the largest K-S score is a culprit. Stages 1 to 3: `kair-published` names a
culprit, or an edge that ends at one. Default: the first verdict names culprits and none else. A
fault counts if it costs 2 % of its steps. With it the time of the scores of 2,048 workers, as many
as in the paper's cluster, beside the same in numpy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect.published.kair import WHOLE, divergences, rhythms
from stepscope.diagnose.finding import Diagnosis
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.align import align
from stepscope.diagnose.prepare.clean import clean
from stepscope.diagnose.prepare.device_steps import device_steps
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.settings import Settings
from stepscope.simulate.cases import case_values
from stepscope.simulate.parse import parse_fault
from stepscope.simulate.run import Simulation, simulate
from stepscope.simulate.scenario import Parallelism, Scenario
from stepscope.window import Floats, Window

PUBLISHED, DEFAULT = "kair-published", "default"
RANKS, STEPS, COSTS = 64, 60, 0.02
WORKERS, POINTS = 2_048, 256
FAULTS = {
    "hardware: a slow GPU": "gpu_slow:rank={rank},factor=1.3",
    "network: a slow adapter": "nic_slow:rank={rank},factor=8",
    "I/O: slow batches": "data_slow:rank={rank},ms=300",
    "framework: collections of garbage": "gc:rank={rank}",
    "framework: a kernel is compiled": "jit_compile:rank={rank}",
}
"""The families of section II, and faults of the framework."""


@dataclass
class Tally:
    """Jobs whose culprit was named, and how many there were."""

    first: int = 0
    published: int = 0
    default: int = 0
    jobs: int = 0

    def add(self, job: Simulation, culprits: frozenset[int]) -> None:
        self.jobs += 1
        self.first += strangest(job.window) in culprits
        found = named(job.window, PUBLISHED)
        self.published += any(set(one.ranks) & culprits for one in found.verdicts)
        self.default += is_right(named(job.window, DEFAULT), culprits)

    def __str__(self) -> str:
        parts = ((one, self.jobs) for one in (self.first, self.published, self.default))
        return " | ".join(f"{one} of {of}" for one, of in parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    scores()
    print("fault | stage 1 | stages 1 to 3 | default")
    for what, jobs in cases(options.jobs, options.seed):
        tally = Tally()
        for job in jobs:
            costly = [one for one in job.truth.faults if (one.lost_fraction or 0.0) >= COSTS]
            if costly:
                tally.add(job, frozenset(rank for one in costly for rank in one.ranks))
        print(f"{what} | {tally}", flush=True)
    accused = {PUBLISHED: 0, DEFAULT: 0}
    for job in healthy(options.jobs, options.seed):
        for method in accused:
            accused[method] += bool(named(job.window, method).accused)
    print(f"healthy jobs accused, of {options.jobs}: {accused}")


def cases(jobs: int, seed: int) -> Iterator[tuple[str, Iterator[Simulation]]]:
    yield "case V.C: a late graph compiler", (compiler(seed + at) for at in range(jobs))
    for what, fault in FAULTS.items():
        yield what, at_random(fault, jobs, seed)


def compiler(seed: int) -> Simulation:
    """The case at a random host of the 26."""
    values = case_values("kair-1")
    host = int(np.random.default_rng(seed).integers(26))
    ranks = "+".join(str(8 * host + at) for at in range(8))
    fault = parse_fault(f"late_compile:ranks={ranks}")
    return simulate(Scenario(ranks=values["ranks"], steps=STEPS, seed=seed, faults=(fault,)))


def at_random(fault: str, jobs: int, seed: int) -> Iterator[Simulation]:
    random = np.random.default_rng(seed)
    for number in range(jobs):
        pairs = Parallelism(tp=1 + number % 2)
        known = (parse_fault(fault.format(rank=int(random.integers(RANKS)))),)
        yield simulate(Scenario(ranks=RANKS, steps=STEPS, seed=seed + number, parallelism=pairs,
                                faults=known))  # fmt: skip


def healthy(jobs: int, seed: int) -> Iterator[Simulation]:
    for number in range(jobs):
        yield simulate(Scenario(ranks=RANKS, steps=STEPS, seed=seed + 10_000 + number,
                                parallelism=Parallelism(tp=1 + number % 2)))  # fmt: skip


def strangest(window: Window) -> int | None:
    """Stage 1: the rank with the largest score."""
    window, _ = clean(window)
    window, *_ = align(device_steps(window))
    job = Observed(window)
    if job.graph is None:
        return None
    return int(job.line.ranks[int(np.argmax(divergences(rhythms(job.graph))))])


def named(window: Window, method: str) -> Diagnosis:
    return diagnose(window, Settings(methods=(method,)))


def is_right(found: Diagnosis, culprits: frozenset[int]) -> bool:
    """Whether the first verdict names culprits, and no other one anybody else."""
    if not found.accused:
        return False
    ranks = {rank for one in found.accused for rank in one.ranks}
    return bool(set(found.accused[0].ranks) & culprits) and ranks <= culprits


def scores() -> None:
    random = np.random.default_rng(0)
    done = np.sort(random.random((WORKERS, POINTS)), axis=1)
    ours = timed("K-S scores of 2,048 workers", lambda: divergences(done))
    theirs = timed("the same in numpy", lambda: in_numpy(done))
    assert np.allclose(ours, theirs, atol=1e-6)


def in_numpy(done: Floats) -> Floats:
    fixed = np.rint(done * WHOLE).astype(np.int16).astype(np.int32)
    apart = [np.abs(fixed - one).max(axis=1).sum() for one in fixed]
    return np.array(apart) / WHOLE / (len(fixed) - 1)


def timed(what: str, work: Callable[[], Floats]) -> Floats:
    spent, result = float("inf"), np.zeros(0)
    for _ in range(3):
        begin = time.process_time()
        result = work()
        spent = min(spent, time.process_time() - begin)
    print(f"{what:30} {spent * 1e3:8.1f} ms", flush=True)
    return result


if __name__ == "__main__":
    main()
