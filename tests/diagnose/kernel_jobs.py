"""Kernels of jobs that were never run: typical durations, and tables of whole jobs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from stepscope.trace import Host, Job, ProcessGroup
from stepscope.window import Floats, Strings, Table, Window

from .jobs import MS, START

MINUTE = 60_000 * MS


def healthy(
    ranks: int, windows: int = 5, seed: int = 0, chips: float = 0.005, noise: float = 0.01,
    tails: float = np.inf, usual_ns: float = 1e5,
) -> Floats:  # fmt: skip
    """Typical durations: chips differ for good, windows by noise of Student's t."""
    random = np.random.default_rng(seed)
    chip, jitter = (_drawn(random, size, tails) for size in ((ranks, 1), (ranks, windows)))
    spread = np.clip(chips * chip + noise * jitter, -3, 3)
    return np.asarray(usual_ns * np.exp(spread))


def _drawn(random: np.random.Generator, size: tuple[int, int], tails: float) -> Floats:
    return random.standard_t(tails, size) if np.isfinite(tails) else random.normal(size=size)


Mode = tuple[int, int, str, float]
"""Rank, window, kernel and median in ns."""


def a_job_of_kernels(
    modes: Sequence[Mode], ranks: int, groups: Sequence[ProcessGroup] = (), per_host: int = 8,
    count: int = 1000, sigma: float = 0.05, stream: int = 7,
) -> Window:  # fmt: skip
    """A job of which only summaries of kernels were recorded."""
    rank, window, kernel, p50 = zip(*modes, strict=True)
    begin = START // MINUTE * MINUTE + np.array(window) * MINUTE
    medians = np.array(p50)
    summaries = Table({
        "rank": np.array(rank), "window_start_ns": begin, "window_ns": np.full(len(rank), MINUTE),
        "kernel": Strings.of([*kernel]), "stream": np.full(len(rank), stream),
        "cluster": np.zeros(len(rank), np.int64), "count": np.full(len(rank), count),
        "p50_ns": medians.astype(np.int64),
        "p99_ns": (medians * np.exp(2.326 * sigma)).astype(np.int64),
    })  # fmt: skip
    hosts = tuple(Host(f"host-{at:03}", tuple(range(at * per_host, (at + 1) * per_host)))
                  for at in range(ranks // per_host))  # fmt: skip
    members = tuple(range(ranks))
    known = tuple(groups) or (ProcessGroup("dp-0", "dp", members),)
    job = Job("kernels", ranks, hosts, {"dp": ranks}, known)
    return Window(job, {"kernel_summaries": summaries})


def modes_of(kernel: str, typical_ns: Floats) -> list[Mode]:
    """Rows of one kernel, of `[rank, window]`."""
    return [(rank, window, kernel, float(typical_ns[rank, window]))
            for rank, window in product(*map(range, typical_ns.shape))]  # fmt: skip
