"""Benchmark of comparing kernel durations between all ranks, and of false alarms on healthy jobs.

    python -m benchmarks.l3 [--ranks 10240] [--kernels 100] [--rounds 3] [--jobs 200]

Computes the mean Wasserstein-1 distance of every rank to all others, kernel by kernel, grid
included: in C++, in numpy, and as published, with a difference for every pair of ranks (numpy
within a row; for some of the rows, extrapolated). Times are CPU times of this process, the minimum
of several interleaved rounds. Then healthy jobs that consist only of kernels, with heavy-tailed
durations, are summarized as the processor does it, and diagnosed.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.numeric.mixtures import Grid, Mixtures, mean_distances, sorted_distances
from stepscope.diagnose.run import diagnose
from stepscope.processor.compress.modes import Histograms
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Floats, Strings, Table, Window

POINTS = (64, 256)
SHARED, APART = 0.01, 0.005
"""Log-normal differences between ranks: per kernel, and per GPU for all kernels."""
PAIRED_ROWS = 32
MINUTE_NS = 60_000_000_000
WINDOWS, EXECUTIONS = 5, 600


@dataclass(frozen=True)
class Scatter:
    """Distribution of durations: log-normal, or Student's t with the given degrees of freedom."""

    name: str
    freedom: float
    spread: float

    def of(self, random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        if not np.isfinite(self.freedom):
            return np.asarray(self.spread * random.normal(size=shape))
        return np.asarray(self.spread * random.standard_t(self.freedom, shape)).clip(-4, 4)


SCATTERS = (Scatter("log-normal, 5 %", np.inf, 0.05), Scatter("log-t of 3, 5 %", 3.0, 0.05),
            Scatter("log-t of 2, 20 %", 2.0, 0.2))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ranks", type=int, default=10_240)
    parser.add_argument("--kernels", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=200)
    arguments = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}; {arguments.ranks} ranks, {arguments.kernels} kernels")
    for points in POINTS:
        compare(arguments.ranks, arguments.kernels, points, arguments.rounds)
    for scatter in SCATTERS:
        alarms = sum(bool(diagnose(healthy_job(scatter, seed)).verdicts)
                     for seed in range(arguments.jobs))  # fmt: skip
        print(
            f"{alarms} of {arguments.jobs} healthy jobs with a verdict; executions {scatter.name}"
        )


def compare(ranks: int, kernels: int, points: int, rounds: int) -> None:
    """All kernels in C++, one of them in numpy, and some rows of that one by pairs."""
    jobs = [synthetic(ranks, seed) for seed in range(kernels)]
    one, grid = jobs[0], Grid.following(jobs[0], points)
    values = np.ascontiguousarray(one.cdfs(grid.logs).T)
    ways: dict[str, tuple[float, Callable[[], object]]] = {
        "C++": (1.0, lambda: [mean_distances(one, Grid.following(one, points)) for one in jobs]),
        "numpy, sorted": (kernels, lambda: sorted_distances(one, Grid.following(one, points))),
        "numpy, pairs": (kernels * ranks / PAIRED_ROWS, lambda: paired(values, grid)),
    }
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, (times, run) in ways.items():
            least[name] = min(least[name], times * processor_time(run))
    for name, cost in least.items():
        print(f"{points:4} points, {name:14} {cost:10.2f} s {cost / least['C++']:8.0f} times C++")


def processor_time(run: Callable[[], object]) -> float:
    begin = time.process_time()
    run()
    return time.process_time() - begin


def paired(values: Floats, grid: Grid) -> Floats:
    """As published, for some ranks: the distance to every other rank, given the CDFs."""
    weights = grid.weights
    return np.array([(np.abs(values - values[row]) @ weights).sum() for row in range(PAIRED_ROWS)])


def synthetic(ranks: int, seed: int) -> Mixtures:
    """Two modes per rank."""
    random = np.random.default_rng(seed)
    p50 = np.array([2e4, 6.5e4]) * np.exp(SHARED * random.normal(size=(ranks, 2)))
    sigma = 0.06 * np.exp(0.1 * random.normal(size=(ranks, 2)))
    owner = np.repeat(np.arange(ranks), 2)
    return Mixtures.of(owner, np.full(2 * ranks, 500.0), p50.ravel(),
                       (p50 * np.exp(2.326 * sigma)).ravel())  # fmt: skip


def healthy_job(scatter: Scatter, seed: int) -> Window:
    """8 to 64 ranks and eight kernels; half of them have a second mode three times as long."""
    random = np.random.default_rng(seed)
    ranks = int(random.choice([8, 16, 32, 64]))
    chip = np.exp(APART * random.normal(size=(ranks, 1, 1)))
    parts = list(_kernels(scatter, random, chip, ranks))
    names = Strings.of([f"kernel-{at}" for at in range(len(parts))])
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    numbers = np.repeat(np.arange(len(parts)), [len(part["rank"]) for part in parts])
    table = Table({**joined, "kernel": names.take(numbers)})
    members = tuple(range(ranks))
    hosts = tuple(Host(f"host-{at}", members[8 * at : 8 * at + 8]) for at in range(ranks // 8))
    job = Job("healthy", ranks, hosts, {"dp": ranks}, (ProcessGroup("dp-0", "dp", members),))
    return Window(job, {"kernel_summaries": table})


def _kernels(
    scatter: Scatter, random: np.random.Generator, chip: Floats, ranks: int
) -> Iterator[dict[str, np.ndarray]]:
    shape = (ranks, WINDOWS, EXECUTIONS)
    for number in range(8):
        second = random.random(shape) < (0.4 if number % 2 else 0.0)
        usual = np.exp(random.uniform(np.log(2e4), np.log(2e7))) * np.where(second, 3.0, 1.0)
        lasted = usual * chip * np.exp(scatter.of(random, shape))
        histograms = Histograms()
        groups = np.repeat(np.arange(ranks * WINDOWS, dtype=np.uint32), EXECUTIONS)
        histograms.add(groups, lasted.ravel().astype(np.int64))
        modes = histograms.modes()
        count = len(modes)
        yield {
            "rank": modes["group"] // WINDOWS, "cluster": modes["cluster"].copy(),
            "window_start_ns": modes["group"] % WINDOWS * MINUTE_NS,
            "window_ns": np.full(count, MINUTE_NS), "stream": np.full(count, 7),
            **{name: modes[name].copy() for name in ("count", "p50_ns", "p99_ns")},
        }  # fmt: skip


if __name__ == "__main__":
    main()
