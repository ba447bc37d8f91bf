"""Distributions of a kernel's durations on each rank, from a few numbers, and their distances.

    (count, p50, p99) per mode ─▶ Mixtures ─▶ CDFs on a grid ─▶ Wasserstein-1 distances

Paper: ARGUS (2026), section 6.2. Mode c is log-normal with mu = ln p50 and
sigma = (ln p99 - ln p50) / 2.326, weighted by count (eq. 2); the distance of two ranks is the area
between their CDFs (eq. 3), by the trapezoidal rule on a grid.

The paper's grid is log-uniform. On a wide range a small shift falls between two points (algorithm
notes, section 4), and on a kernel's own range narrow modes that are far apart do. Our grid has
points at the modes, more of them where CDFs are steeper, and none in the gaps except at their ends.
Cost: a sort per grid point for the mean distances of all ranks, in C++ if compiled, else in numpy;
the former rounds (`native/src/distances.hpp` says by how much).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.numeric import compiled
from stepscope.window import Floats, Ints, Mask

Z99 = 2.326
"""The 99th percentile of the normal distribution, as in ARGUS. Paper."""
LEAST_SIGMA = 1e-3
"""The smallest sigma, so that no mode has zero width. GPUs measure durations in steps of 32 ns, a
thousandth of a kernel of 30 us. It changes no distance by more than a thousandth of the duration.
Statistics."""
REACH = 5.0
"""The grid spans this many sigma around each mode (algorithm notes, section 4); 3e-7 lies outside.
Statistics."""
POINTS = 64
"""Points of a grid. Mean distances are within 2.5 % of exact ones, with 256 points within 0.2 %; a
log-uniform grid errs by up to 160 % and 2 % (docs/methods/argus-l3.md). Our simulator."""
CELLS = 1024
"""Cells of the range in which modes are counted to place the grid points."""
STEEPNESS = 0.25
"""A cell gets points in proportion to this power of its steepness. For a single curve the
trapezoidal rule is best with a third; of 1/2, 1/3, 0.3 and 1/4 this value has the smallest error
over shapes of one to three modes. Our simulator."""
MOST_GAPS = 0.25
"""The largest share of the points that is placed at the ends of gaps. Our simulator."""
_Z = np.linspace(-8.0, 8.0, 8193)
_PHI = np.array([0.5 * math.erfc(-z / math.sqrt(2.0)) for z in _Z.tolist()])


@dataclass(frozen=True)
class Mixtures:
    """Log-normal modes of several ranks, rank by rank."""

    begins: Ints
    """The index at which each rank's modes begin, and the total number at the end."""
    log_p50: Floats
    sigma: Floats
    weight: Floats
    """The weights of a rank's modes add up to 1."""

    @classmethod
    def of(cls, owner: Ints, count: Floats, p50_ns: Floats, p99_ns: Floats) -> Mixtures:
        """Builds mixtures from one triple per mode. `owner` numbers the ranks from 0 on, in order,
        without gaps."""
        begins = np.searchsorted(owner, np.arange(int(owner[-1]) + 2))
        log_p50 = np.log(np.maximum(p50_ns, 1.0))
        sigma = (np.log(np.maximum(p99_ns, 1.0)) - log_p50) / Z99
        weight = count / np.add.reduceat(count, begins[:-1])[owner]
        return cls(begins, log_p50, np.maximum(sigma, LEAST_SIGMA), weight)

    def __len__(self) -> int:
        return len(self.begins) - 1

    @property
    def mean_ns(self) -> Floats:
        """Mean duration of each rank, including the tails of the modes."""
        return self._per_rank(np.exp(self.log_p50 + self.sigma**2 / 2))

    @property
    def typical_ns(self) -> Floats:
        """Weighted mean of the modes' medians, which does not change when a tail grows."""
        return self._per_rank(np.exp(self.log_p50))

    def cdfs(self, logs: Floats) -> Floats:
        """`[point, rank]`: the share of the executions that took no longer than the point."""
        phi = np.interp((logs[:, None] - self.log_p50) / self.sigma, _Z, _PHI)
        return np.asarray(np.add.reduceat(phi * self.weight, self.begins[:-1], axis=1))

    def _per_rank(self, values: Floats) -> Floats:
        return np.asarray(np.add.reduceat(values * self.weight, self.begins[:-1]))


@dataclass(frozen=True)
class Grid:
    """Durations at which CDFs are compared."""

    logs: Floats
    """Their logarithms, ascending."""

    @classmethod
    def log_uniform(cls, mixtures: Mixtures, points: int) -> Grid:
        """The paper's grid, over the range of the modes."""
        low = mixtures.log_p50 - REACH * mixtures.sigma
        high = mixtures.log_p50 + REACH * mixtures.sigma
        return cls(np.linspace(float(low.min()), float(high.max()), points))

    @classmethod
    def following(cls, mixtures: Mixtures, points: int = POINTS) -> Grid:
        """A grid with more points where CDFs are steep, and points at both ends of every gap."""
        edges = cls.log_uniform(mixtures, CELLS + 1).logs
        inside, steepness = _cover(mixtures, edges)
        gaps = edges[np.flatnonzero(np.diff(inside)) + 1][: int(MOST_GAPS * points)]
        share = np.concatenate(([0.0], np.cumsum(np.where(inside, steepness**STEEPNESS, 0.0))))
        rest = np.interp(np.linspace(0.0, share[-1], points - gaps.size), share, edges)
        return cls(np.sort(np.concatenate((gaps, rest))))

    @property
    def weights(self) -> Floats:
        """The weight of each point in the trapezoidal rule, in ns."""
        half = np.diff(np.exp(self.logs)) / 2
        return np.concatenate((half, [0.0])) + np.concatenate(([0.0], half))


def _cover(mixtures: Mixtures, edges: Floats) -> tuple[Mask, Floats]:
    """For each cell, whether any mode covers it, and how steep CDFs are there, times duration."""
    step = max(float(edges[1] - edges[0]), 1e-12)
    half = REACH * mixtures.sigma
    first = ((mixtures.log_p50 - half - edges[0]) / step).astype(np.int64).clip(0, CELLS - 1)
    stop = ((mixtures.log_p50 + half - edges[0]) / step).astype(np.int64).clip(0, CELLS - 1) + 1
    rise = mixtures.weight * np.exp(mixtures.log_p50) / mixtures.sigma
    began, rose = np.bincount(first, minlength=CELLS + 1), np.bincount(first, rise, CELLS + 1)
    ended, fell = np.bincount(stop, minlength=CELLS + 1), np.bincount(stop, rise, CELLS + 1)
    inside = np.cumsum(began - ended)[:CELLS] > 0
    return inside, np.maximum(np.cumsum(rose - fell)[:CELLS], 0.0)


def mean_distances(mixtures: Mixtures, grid: Grid) -> Floats:
    """Mean distance of each rank to all others, in ns; 0 for a single rank."""
    if compiled.mean_distances is None:
        return sorted_distances(mixtures, grid)
    columns = (mixtures.log_p50, mixtures.sigma, mixtures.weight, grid.logs, grid.weights)
    packed = [column.astype(np.float64, copy=False).tobytes() for column in columns]
    means = compiled.mean_distances(mixtures.begins.astype(np.uint32).tobytes(), *packed)
    return np.frombuffer(means, np.float64)


def sorted_distances(mixtures: Mixtures, grid: Grid) -> Floats:
    """The same in numpy: sum over j of |v_k - v_j| = (2k + 2 - N) v_k + T - 2 P_k, for the N values
    of a grid point in order, with their sum T and the sum P_k of the first k + 1."""
    values = mixtures.cdfs(grid.logs)
    ranks = len(mixtures)
    if ranks < 2:
        return np.zeros(ranks)
    order = np.argsort(values, axis=1)
    ordered = np.take_along_axis(values, order, axis=1)
    before = np.cumsum(ordered, axis=1)
    place = 2.0 * np.arange(ranks) + 2 - ranks
    sums = np.empty_like(values)
    np.put_along_axis(sums, order, place * ordered + before[:, -1:] - 2 * before, axis=1)
    return np.asarray(grid.weights @ sums / (ranks - 1))
