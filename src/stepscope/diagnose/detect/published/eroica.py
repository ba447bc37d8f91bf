"""EROICA's localisation as published: distance from expectation, and differential distance.

Fault: functions that all workers execute unexpectedly long, or a part of them unlike the others.
Paper: EROICA (2026), section 4.3. Symbols: P -> (beta, mu, sigma) of `Patterns`, R -> `Ranges`,
D (7) -> `beyond`, normalised P (8) -> `normalised`, N Delta (9) -> `unlike`, delta -> `DELTA`,
W_N -> `PEERS` workers sampled with a fixed seed, M + k MAD (11) -> `outliers` with `MADS`.
Runs by `--method eroica-published` only. On healthy data with a spread of 10 % it flags 7 % of the
workers, one glitch with beta = 1 hides a function that takes twice as long, and workers that wait
are flagged with the one they wait for (algorithm notes, section 4). The default is
`detect.behaviour` and `detect.common_patterns`.
What differs: nothing but that workers are ranks of any role, as in the paper.
Cost: 100 distances per function and worker, compiled.
Cannot see: who waits and who is waited for.

Unknown coordinates are NaN and differ from nothing.
100 Delta is an integer, so its median and its MAD are exact counts in 101 bins. The comparison of
all workers with the sampled ones is compiled; without a compiler numpy does the same, ten times as
slowly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.diagnose.account.ranges import Judge
from stepscope.diagnose.expected import NOTHING, Range, Ranges
from stepscope.diagnose.finding import Decision, Slowdown
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import compiled
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import SCORE
from stepscope.diagnose.views.patterns import LEAST_BETA, Patterns
from stepscope.window import Floats, Ints, Mask

DELTA = 0.4
"""Manhattan distance from which two workers behave unlike. Paper (EROICA, 4.3)."""
PEERS = 100
"""Workers that each is compared with, at most. Paper (EROICA, 4.3)."""
MADS = 5.0
"""k of equation 11. Paper (EROICA, 4.3)."""
SEED = 0
"""Of the sample of workers: the same window gives the same verdict. Our choice."""
Singles = NDArray[np.float32]

ROUNDING = 1e-6
"""A distance this close to the limit counts as reaching it: 1.0 - 0.6 is below 0.4 in float32.
Statistics."""
BLOCK = 8192
"""Workers that numpy compares at a time, so that the differences stay in the cache."""


@dataclass(frozen=True)
class Localised:
    """The result of the published method for one function: every worker that it calls abnormal."""

    unexpected: Mask
    """D > 0."""
    different: Mask
    """Delta > M + k MAD."""


def as_published(pattern: Singles, expected: Ranges | None, sample: Ints) -> Localised:
    """Equation 11 for one function.

    Args:
        pattern: `[3, worker]`: beta, mu and sigma.
        expected: R; None: everything is expected.
        sample: W_N.
    """
    matters = pattern[0] > LEAST_BETA
    points = normalised(pattern)
    counts = unlike(points, np.ascontiguousarray(points[:, sample]), DELTA)
    different = outliers(counts, sample.size, MADS)
    far = np.zeros(matters.shape, np.bool_) if expected is None else distance(pattern, expected) > 0
    return Localised(matters & far, matters & different)


def distance(pattern: Singles, expected: Ranges) -> Floats:
    """D, equation 7."""
    ranges = (expected.beta, expected.mu, expected.sigma)
    parts = [beyond(values.astype(np.float64), one)
             for values, one in zip(pattern, ranges, strict=True) if one is not None]  # fmt: skip
    return np.asarray(np.sum(parts, axis=0))


def sample_of(workers: int) -> Ints:
    """W_N: N = min(100, |W|) workers."""
    chosen = np.random.default_rng(SEED).permutation(workers)[:PEERS]
    return np.sort(chosen).astype(np.int64)


class EroicaPublished:
    """Workers whose pattern of a function is unexpected or unlike most others', as in EROICA."""

    name = "eroica-published"
    needs = Needs("patterns")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        for window in job.patterns:
            judge = Judge(window, NOTHING)
            sample = sample_of(window.rows.size)
            for at in range(len(window.functions)):
                found = as_published(_of(window, at), judge.expected(window.functions[at]), sample)
                yield from self._findings(job, window, at, found)

    def _findings(
        self, job: Observed, window: Patterns, at: int, found: Localised
    ) -> Iterator[Slowdown]:
        for flagged, why in ((found.unexpected, "its expected range"),
                             (found.different, "most other ranks")):  # fmt: skip
            rows = window.rows[np.flatnonzero(flagged)]
            if rows.size:
                yield self._finding(job, window, at, rows, why)

    def _finding(self, job: Observed, window: Patterns, at: int, rows: Ints, why: str) -> Slowdown:
        function = window.functions[at]
        everyone = rows.size == window.rows.size
        ranks = () if everyone else job.line.ranks_of(rows)
        share = float(np.median(window.beta[at, rows]))
        detail = f"{function.frame} is unlike {why} on {rows.size} of {window.rows.size} ranks"
        of_host = function.kind == "python"
        return Slowdown(
            self.name, "code" if everyone else "unknown", detail, ranks,
            function=function.frame if of_host else None,
            kernels=() if of_host else (function.name,),
            steps=window.steps, time_ns=window.time_ns, score=SCORE, says=detail,
            values={"beta": share, "ranks": int(rows.size)},
            decisions=(Decision(self.name, True, float(rows.size), 1.0, detail),),
        )  # fmt: skip


def _of(window: Patterns, at: int) -> Singles:
    rows = window.rows
    found = np.stack([window.beta[at, rows], window.mu[at, rows], window.sigma[at, rows]])
    return found.astype(np.float32)


def beyond(values: Floats, expected: Range) -> Floats:
    """How far values of one coordinate lie outside of their range; 0 where unknown."""
    above = np.maximum(values - expected.high, expected.low - values)
    return np.nan_to_num(np.maximum(above, 0.0))


def normalised(pattern: Singles) -> Singles:
    """`[coordinate, worker]`, each coordinate divided by its largest value; unknown is 0."""
    known = np.fmax(pattern, np.float32(0))  # none is below 0
    most = known.max(axis=1, initial=0.0, keepdims=True)
    return np.divide(known, np.where(most > 0, most, 1.0), out=known, dtype=np.float32)


def unlike(points: Singles, peers: Singles, limit: float) -> NDArray[np.int32]:
    """For each worker, how many of the peers are at a Manhattan distance of `limit` or more.

    Args:
        points: `[3, worker]`, all finite.
        peers: `[3, peer]`, all finite.
    """
    if compiled.unlike is None:
        return unlike_in_numpy(points, peers, limit)
    found = compiled.unlike(points.tobytes(), peers.tobytes(), limit - ROUNDING)
    return np.frombuffer(found, np.int32)


def unlike_in_numpy(points: Singles, peers: Singles, limit: float) -> NDArray[np.int32]:
    """The same in numpy."""
    counts = np.zeros(points.shape[1], np.int32)
    least = np.float32(limit - ROUNDING)
    for first in range(0, counts.size, BLOCK):
        part = points[:, first : first + BLOCK]
        for peer in peers.T:
            distance = np.abs(part - peer[:, None]).sum(axis=0)
            counts[first : first + BLOCK] += distance >= least
    return counts


def median_and_mad(counts: NDArray[np.int32], most: int) -> tuple[float, float]:
    """Median and MAD of counts between 0 and `most`, both exact."""
    bins = np.bincount(counts, minlength=most + 1)
    middle = _middle(np.arange(most + 1.0), bins)
    apart = np.abs(np.arange(most + 1) - middle)
    order = np.argsort(apart, kind="stable")
    return middle, _middle(apart[order], bins[order])


def _middle(values: Floats, times: Ints) -> float:
    """The median of sorted values, each of which occurs this many times."""
    total = np.cumsum(times)
    low, high = (int(total[-1]) - 1) // 2, int(total[-1]) // 2
    at = np.searchsorted(total, (low, high), side="right")
    return float(values[at[0]] + values[at[1]]) / 2


def outliers(counts: NDArray[np.int32], most: int, mads: float) -> Mask:
    """Workers that are unlike more peers than the median plus this many MADs."""
    middle, spread = median_and_mad(counts, most)
    return np.asarray(counts > middle + mads * spread)
