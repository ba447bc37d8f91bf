"""Time of EROICA's localisation: a million workers with twenty functions, and a window to verdict.

    python -m benchmarks.patterns_localise [--workers N] [--ranks N]

The naive form is the paper's, worker by worker in numpy, on the same input in the same process; of
a million workers it judges a part, and the time of all is scaled from that. Input is synthetic:
normal shares and uses with a spread of 5 %, and one worker in ten thousand twice as slow.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from stepscope.diagnose.detect.profiled.odd_patterns import odd_functions
from stepscope.diagnose.detect.published.eroica import (
    DELTA,
    MADS,
    ROUNDING,
    Singles,
    as_published,
    normalised,
    sample_of,
)
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.patterns import Function, Patterns
from stepscope.memory import keep_freed_memory
from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Ints, Mask, Strings, Table, Window

FUNCTIONS = 20
NAIVE = 20_000
"""Workers that the naive form judges."""


def main() -> None:
    text = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=text)
    parser.add_argument("--workers", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=10_240)
    options = parser.parse_args()
    keep_freed_memory()  # as commands do
    localisation(options.workers)
    verdict(options.ranks)


def localisation(workers: int) -> None:
    random = np.random.default_rng(0)
    patterns = [_pattern(random, workers) for _ in range(FUNCTIONS)]
    sample = sample_of(workers)
    found, seconds = timed(lambda: [as_published(one, None, sample).different for one in patterns])
    print(f"published, {workers:,} workers x {FUNCTIONS} functions: {seconds:.2f} s of one core")
    few = min(NAIVE, workers)
    slow, part = timed(lambda: [_naive(patterns[0], sample, few)])
    whole = part * workers / few * FUNCTIONS
    alike = "equal" if (slow[0] == _counts(patterns[0], sample)[:few]).all() else "differ"
    print(f"naive, worker by worker: {whole:.0f} s (scaled from {few:,} workers), "
          f"{whole / seconds:.0f} times as long; counts {alike}")  # fmt: skip
    grid = _grid(patterns)
    everybody = [np.arange(workers)]
    odd, seconds = timed(lambda: odd_functions(grid, everybody))
    print(f"default, the same: {seconds:.2f} s, {len(odd):,} odd; published flags "
          f"{sum(int(one.sum()) for one in found):,}")  # fmt: skip


def timed(work: Callable[[], list]) -> tuple[list, float]:  # type: ignore[type-arg]
    """The result and the processor time of the second of two runs."""
    work()
    begin = time.process_time()
    return work(), time.process_time() - begin


def _pattern(random: np.random.Generator, workers: int) -> Singles:
    levels = np.array([[0.04], [0.8], [0.1]])
    values = levels * (1 + 0.05 * random.standard_normal((3, workers)))
    values[0, random.random(workers) < 1e-4] *= 2
    return np.clip(values, 0, 1).astype(np.float32)


def _counts(pattern: Singles, sample: Ints) -> Ints:
    from stepscope.diagnose.detect.published.eroica import unlike

    points = normalised(pattern)
    found = unlike(points, np.ascontiguousarray(points[:, sample]), DELTA)
    return found.astype(np.int64)


def _naive(pattern: Singles, sample: Ints, workers: int) -> Mask | Ints:
    """Equation 9 worker by worker, then the median and the MAD by sorting."""
    points = normalised(pattern)
    peers = points[:, sample]
    counts = np.empty(workers, np.int64)
    for at in range(workers):
        distance = np.abs(points[:, at, None] - peers).sum(axis=0)
        counts[at] = int((distance >= np.float32(DELTA - ROUNDING)).sum())
    middle = np.median(counts)
    np.flatnonzero(counts > middle + MADS * np.median(np.abs(counts - middle)))
    return counts


def _grid(patterns: list[Singles]) -> Patterns:
    beta, mu, sigma = (
        np.stack([one[at] for one in patterns]).astype(np.float64) for at in range(3)
    )
    names = tuple(Function(f"kernel_{at}", "kernel", resource="sm") for at in range(FUNCTIONS))
    own = beta.sum(axis=0)
    return Patterns(names, beta, mu, sigma, np.full(beta.shape, np.nan), own, (0, 19),
                    (0, 1), 1e10, True)  # fmt: skip


def verdict(ranks: int) -> None:
    """A window of profiling from its table to a verdict."""
    window = _window(ranks)
    rows = len(window.tables["patterns"])
    found, seconds = timed(lambda: [diagnose(window)])
    named = [(one.ranks, one.cause) for one in found[0].verdicts]
    print(f"window of {ranks:,} ranks, {rows:,} rows, to verdict: {seconds:.2f} s; {named}")


def _window(ranks: int) -> Window:
    random = np.random.default_rng(1)
    beta = 0.04 * (1 + 0.03 * random.standard_normal((ranks, FUNCTIONS)))
    beta[ranks // 3, 4] = 0.2
    rank = np.repeat(np.arange(ranks), FUNCTIONS)
    code = np.tile(np.arange(FUNCTIONS, dtype=np.int32), ranks)
    count = rank.size
    words = {name: Strings(np.zeros(count, np.int32), (value,))
             for name, value in (("kind", "kernel"), ("resource", "sm"))}  # fmt: skip
    table = Table({
        "rank": rank, "window_start_ns": np.full(count, 10**18),
        "window_ns": np.full(count, 10**10),
        "function": Strings(code, tuple(f"kernel_{at}" for at in range(FUNCTIONS))), **words,
        "beta": beta.ravel(), "mu": np.full(count, 0.95), "sigma": np.full(count, 0.01),
        "first_step": np.full(count, 100), "last_step": np.full(count, 119),
    })  # fmt: skip
    hosts = tuple(
        Host(f"host-{at:04}", tuple(range(8 * at, 8 * at + 8))) for at in range(ranks // 8)
    )
    groups = (ProcessGroup("dp-0", "dp", tuple(range(ranks))),)
    return Window(Job("benchmark", ranks, hosts, groups=groups), {"patterns": table})


if __name__ == "__main__":
    main()
