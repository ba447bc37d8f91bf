"""ARGUS level 3 as published: mean Wasserstein-1 distances between ranks, and Tukey's fence.

Fault: ranks on which a kernel's executions are distributed unlike those of all others.
Paper: ARGUS (2026), section 6.2. Symbols: F -> `Mixtures.cdfs`, W1 -> `mean_distances`, alpha as
there: a rank is anomalous if its mean distance to all others lies above Q3 + alpha (Q3 - Q1).
Runs by `--method argus-l3-published` only. Mean distances of healthy ranks are skewed, so that this
fence flags one rank in twenty per kernel, fast ones as well, any where all others are equal, and
none where 30 % are slow (algorithm notes, section 4). The default is `detect.slow_kernel`.
What differs: the paper judges one window that people chose. Here a rank must be anomalous in most
windows.
Cost: a sort per grid point, kernel and window.
Cannot see: a fault of 30 % of the ranks or more; whether a rank is slow or fast.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.diagnose.finding import Decision, Slowdown
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric.mixtures import Grid, Mixtures, mean_distances
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import SCORE
from stepscope.diagnose.views.breakdown import is_computing
from stepscope.diagnose.views.kernel_times import KernelTimes
from stepscope.window import Ints

ALPHA = 1.5
"""Tukey's factor; the paper names none. Statistics."""
PUBLISHED_POINTS = 256
"""Points of the grid; the paper names none. Our simulator."""
MOST_WINDOWS = 0.5
"""Part of the windows in which a rank must be anomalous; the paper has one window. Our
simulator."""


class ArgusL3Published:
    """Ranks whose distance to all others lies above Tukey's fence for a kernel, as in ARGUS."""

    name = "argus-l3-published"
    needs = Needs("kernels|kernel_summaries", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        known = job.kernels
        if known is None:
            return
        found: dict[int, list[str]] = {}
        for times in known:
            if is_computing(times.kernel):
                for row in _anomalous(times, job.groups(None)):
                    found.setdefault(row, []).append(times.kernel)
        for row, kernels in sorted(found.items()):
            yield self._of_rank(job, row, tuple(dict.fromkeys(kernels)))

    def _of_rank(self, job: Observed, row: int, kernels: tuple[str, ...]) -> Slowdown:
        detail = f"mean distances lie above Tukey's fence for {len(kernels)} kernels"
        return Slowdown(
            self.name, "unknown", detail, (int(job.line.ranks[row]),), kernels=kernels,
            score=SCORE, values={"kernels": len(kernels)},
            decisions=(Decision(self.name, True, float(len(kernels)), 1.0, detail),),
        )  # fmt: skip


def _anomalous(times: KernelTimes, groups: list[Ints]) -> list[int]:
    """Rows that lie above their group's fence in most windows in which they ran the kernel."""
    ran, hit = np.zeros(times.shape[0]), np.zeros(times.shape[0])
    for group in groups:
        for window in range(times.shape[1]):
            mixtures, rows = times.among(group, window)
            if rows.size > 1:
                ran[rows] += 1
                hit[rows[as_published(mixtures)]] += 1
    return [int(row) for row in np.flatnonzero((hit > MOST_WINDOWS * ran) & (ran > 0))]


def as_published(mixtures: Mixtures) -> Ints:
    """Section 6.2: ranks whose mean distance on a log-uniform grid is above Tukey's upper fence."""
    deviation_ns = mean_distances(mixtures, Grid.log_uniform(mixtures, PUBLISHED_POINTS))
    low, high = np.quantile(deviation_ns, (0.25, 0.75))
    return np.flatnonzero(deviation_ns > high + ALPHA * (high - low))
