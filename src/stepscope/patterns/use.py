"""How much a function uses its resource: mu and sigma of EROICA, equations 4 and 5.

    mu    = sum |L(e)| mean(L(e)) / sum |L(e)|        sums over the executions e of f on w
    sigma = sum |L(e)| std(L(e)) / sum |L(e)|

L(e) is the critical duration of an execution, by Algorithm 1 (`native/src/busiest.hpp`). The paper
prints the denominators with E_f; they must run over E_{f,w}, or no worker's mu reaches 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.patterns.activity import Lane
from stepscope.patterns.compiled import busiest
from stepscope.window import Floats, Ints, Mask

SHARE = 0.8
"""Of an execution's use that its critical duration has at least; paper (EROICA), Algorithm 1."""
ZERO = 0.005
"""Use up to this counts as zero; the paper has 0. Counters read a little while idle, and then the
shortest pause is 0 and the critical duration is everything; our simulator (algorithm notes)."""
LEAST_SAMPLES = 10
"""Fewer instants do not tell a share: its error is then above 0.16. Statistics."""


@dataclass(frozen=True)
class Series:
    """Samples of one resource's use, in order of time."""

    resource: str
    start_ns: Ints
    """Of the time over which a sample is averaged."""
    end_ns: Ints
    """Its end; the start if it is of an instant."""
    use: Floats
    """0 to 1."""

    @property
    def of_instants(self) -> bool:
        return bool((self.start_ns == self.end_ns).all())

    @property
    def middle_ns(self) -> Ints:
        return self.start_ns + (self.end_ns - self.start_ns) // 2


@dataclass(frozen=True)
class Use:
    """Of each function, by number; not a number where nothing was measured."""

    mu: Floats
    sigma: Floats


def in_order(series: Series) -> Series:
    """The samples that are numbers, in order of their middles, from 0 to 1."""
    known = np.flatnonzero(np.isfinite(series.use) & (series.end_ns >= series.start_ns))
    order = known[np.argsort(series.middle_ns[known], kind="stable")]
    use = np.clip(series.use[order], 0.0, 1.0)
    return Series(series.resource, series.start_ns[order], series.end_ns[order], use)


def critical_use(lane: Lane, functions: int, series: Series) -> Use:
    """Equations 4 and 5: averages over the critical durations of a device's executions."""
    first, last = _samples_of(lane, series)
    some = np.flatnonzero(last > first)
    spans, found = busiest(
        series.use.tobytes(), first[some].tobytes(), last[some].tobytes(), SHARE, ZERO
    )
    begin, end = np.frombuffer(spans, np.int64).reshape(-1, 2).T
    mean, deviation = np.frombuffer(found, np.float64).reshape(-1, 2).T
    length = (end - begin).astype(np.float64)
    of = lane.of[some]
    total = np.bincount(of, length, functions)
    with np.errstate(invalid="ignore"):
        return Use(
            np.bincount(of, length * mean, functions) / total,
            np.bincount(of, length * deviation, functions) / total,
        )


def _samples_of(lane: Lane, series: Series) -> tuple[Ints, Ints]:
    """The first sample of each execution, and the one after its last.

    A sample is of the execution in which its middle lies, if at least half of it does.
    """
    first = np.searchsorted(series.middle_ns, lane.start_ns)
    last = np.searchsorted(series.middle_ns, lane.end_ns)
    alone = np.flatnonzero(last - first == 1)
    sample = first[alone]
    begin = np.maximum(series.start_ns[sample], lane.start_ns[alone])
    end = np.minimum(series.end_ns[sample], lane.end_ns[alone])
    most = 2 * (end - begin) >= series.end_ns[sample] - series.start_ns[sample]
    last[alone[~most]] -= 1
    return first, last


def own_use(lanes: Sequence[Lane], functions: int, series: Sequence[Series]) -> Use:
    """The use of the processor by the functions of one thread.

    All executions of a function are taken as one, without Algorithm 1: samples are rarer than
    executions, and that a Python function waits must not be cut away.

    Args:
        lanes: the highest class first; a sample counts for the first in which it lies.
        series: the best first; one that knows too little of a function is passed over.
    """
    mu, sigma = np.full(functions, np.nan), np.full(functions, np.nan)
    for one in series:
        count, total, squares = _sums(lanes, functions, one)
        least = LEAST_SAMPLES if one.of_instants else 1
        new = np.flatnonzero((count >= least) & np.isnan(mu))
        mu[new] = total[new] / count[new]
        sigma[new] = np.sqrt(np.maximum(squares[new] / count[new] - mu[new] ** 2, 0.0))
    return Use(mu, sigma)


def _sums(lanes: Sequence[Lane], functions: int, series: Series) -> tuple[Floats, Floats, Floats]:
    """Of each function: the number of samples, their sum, and the sum of their squares."""
    of = np.full(series.use.size, -1, np.int64)
    for lane in lanes:
        found = _function_at(lane, series)
        of = np.where(of < 0, found, of)
    known = of >= 0
    of, use = of[known], series.use[known]
    count, total, squares = (
        np.asarray(np.bincount(of, weights, functions), np.float64)
        for weights in (np.ones(of.size), use, use * use)
    )
    return count, total, squares


def _function_at(lane: Lane, series: Series) -> Ints:
    """The function of the segment that has at least half of each sample; -1 if none has."""
    if not lane.start_ns.size:
        return np.full(series.use.size, -1, np.int64)
    middle = series.middle_ns
    at = np.maximum(np.searchsorted(lane.start_ns, middle, side="right") - 1, 0)
    begin = np.maximum(series.start_ns, lane.start_ns[at])
    end = np.minimum(series.end_ns, lane.end_ns[at])
    inside: Mask = (lane.start_ns[at] <= middle) & (middle < lane.end_ns[at])
    inside &= 2 * (end - begin) >= series.end_ns - series.start_ns
    return np.where(inside, lane.of[at], -1)
