"""Benchmark of ARGUS' first two levels: the step series of a job, and the phases of all its ranks.

    python -m benchmarks.levels [--points 1000000] [--ranks 10240] [--phases 50] [--rounds 5]

Level 1 runs on a series with 3 % noise, as published (in C++, and in numpy) and as stepscope runs
it; times are per point. Level 2 runs on all ranks, phases and 60 windows in groups of 8, 128 and
1,280: as published, in C++ and in numpy, group by group, for one of the phases; and as the ratios
to the median of the peers that stepscope uses. Times are CPU times of this process, the minimum of
several interleaved rounds.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping

import numpy as np

from stepscope.diagnose.detect.published import argus_l1, argus_l2
from stepscope.diagnose.detect.ranks.straggler import log_ratios
from stepscope.diagnose.detect.steps import step_time
from stepscope.window import Floats, Ints

WINDOWS = 60
GROUPS = (8, 128, 1280)
NUMPY_POINTS = 100_000
"""Fewer points for the numpy version, which stores each point once per window."""
REPEATS = 3
"""Runs of a version in each round: the first pays for memory that another version has used."""
Ways = Mapping[str, tuple[float, Callable[[], object]]]
"""For each version, the factor for its time, and the function."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=10_240)
    parser.add_argument("--phases", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    series = noisy((arguments.points,), 0.03)
    for name, seconds in timed(of_one_series(series), arguments.rounds).items():
        print(f"L1 {name}: {1e9 * seconds / series.size:.2f} ns per point")
    for size in GROUPS:
        groups = shuffled(arguments.ranks, size)
        ways = of_all_ranks(arguments.ranks, arguments.phases, groups)
        for name, seconds in timed(ways, arguments.rounds).items():
            print(f"L2 {name}, groups of {size}: {seconds:.3f} s")


def of_one_series(series: Floats) -> Ways:
    steps = np.arange(series.size)
    some = series[:NUMPY_POINTS]
    windows = np.lib.stride_tricks.sliding_window_view(some, argus_l1.WINDOW)
    least, spread = step_time.LEAST_RISE, argus_l1.LARGEST_SPREAD
    width, ratio = argus_l1.WINDOW, argus_l1.RATIO
    return {
        "windows, C++": (
            1.0,
            lambda: argus_l1.wide_windows(series, width, ratio),
        ),
        "windows, numpy": (
            series.size / some.size,
            lambda: windows.max(axis=1) > argus_l1.RATIO * windows.min(axis=1),
        ),
        "change point, C++": (1.0, lambda: argus_l1.regression_as_published(series)),
        "change point, numpy": (1.0, lambda: argus_l1.largest_rise(series, least, spread)),
        "jitter as run": (1.0, lambda: step_time.jitter(series, steps)),
        "regression as run": (1.0, lambda: step_time.regression(series)),
    }


def of_all_ranks(ranks: int, phases: int, groups: list[Ints]) -> Ways:
    """Runs the phases one after the other, each with 60 windows."""
    durations = [noisy((WINDOWS, ranks), 0.02, seed) for seed in range(phases)]
    singles = [one.astype(np.float32) for one in durations]
    by_rank = [np.ascontiguousarray(one.T) for one in durations]
    return {
        "as published, C++": (1.0, lambda: [argus_l2.imbalances(one, groups) for one in singles]),
        "as published, numpy": (phases, lambda: argus_l2.imbalances_by_group(singles[0], groups)),
        "ratios to peers": (
            1.0,
            lambda: [log_ratios(one, groups, 1e6) for one in by_rank],
        ),
    }


def noisy(shape: tuple[int, ...], spread: float, seed: int = 0) -> Floats:
    normal = np.random.default_rng(seed).normal(size=shape)
    return np.asarray(1e9 * np.exp(spread * normal))


def shuffled(ranks: int, size: int) -> list[Ints]:
    order = np.random.default_rng(0).permutation(ranks)
    return [order[begin : begin + size] for begin in range(0, ranks, size)]


def timed(ways: Ways, rounds: int) -> dict[str, float]:
    """CPU time in seconds of each version, interleaved."""
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, (scale, way) in ways.items():
            for _ in range(REPEATS):
                began = time.process_time()
                way()
                least[name] = min(least[name], scale * (time.process_time() - began))
    return least


if __name__ == "__main__":
    main()
