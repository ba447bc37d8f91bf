"""Slow places: in which steps each place moved data slowly, compared to fast steps or its equals.

A place is slow in a step if all its transfers together took RATIO times as long as in its fast
steps, or if a single transfer delayed the step (`brief`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.network.counters import lasting_slowdown
from stepscope.diagnose.network.edges import Place
from stepscope.diagnose.network.likelihood import Cells
from stepscope.diagnose.network.on_devices import on_devices
from stepscope.diagnose.network.outstanding import SlowPeriods
from stepscope.diagnose.network.rates import Rates, measure_rates
from stepscope.diagnose.network.topology import Topology
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed, once
from stepscope.window import Floats, Ints, Mask

LEAST_STEPS = 8
"""Fewer steps show no level of a place, as in `transfers`; they are judged by `slow_link_brief`.
Statistics."""
RATIO = 1.5
"""A transfer that takes 1.5 times as long is slow, as in `slow_group`. Our simulator."""
SIGMAS = 5.0
"""A slow transfer exceeds the noise of single steps of its class by this factor. Statistics."""
FAST, FAST_SIGMAS = 0.2, 0.84
"""The fast steps of a place are its fastest fifth; with Gaussian noise that quantile lies 0.84
sigma below the mean. Statistics."""
APART = 4.0
"""A place is slow relative to its equals if it exceeds them by this many times their own scatter.
Our simulator."""
PAIR, RATIO_OF_TWO = 2, 2.0
"""The limit against a single equal, as in `slow_group`: with two places it is unclear which one is
normal. The same against places elsewhere in the job, which may have other work beside them. Our
simulator."""
FEWEST_FAST, LEAST_FAST = 0.25, 2
"""The part, and the number, of equals that must be fast to show what is usual. A host in the middle
of a pipeline is behind two of three pairs. Our choice."""
EDGE = 0.02
"""Share of a transfer that is ignored at either end, where its first requests are being posted and
its last ones complete: clocks are aligned only to microseconds. Our simulator."""
HELD_UP = 0.03
"""A single transfer delays a step if it takes longer by this share of a typical step. A shorter
delay costs too little to be reported, however often it occurs. Our simulator."""


@dataclass(frozen=True)
class SlowPlaces:
    """The transfer rates of all places, and where these are slow."""

    rates: Rates
    excess: Floats
    """`[place, step]`: logarithm of the transfer time relative to fast steps."""
    cells: Cells
    times: Floats
    """The time of each single transfer relative to fast steps."""
    always: Mask
    """Places that were never fast: only their equals show that they are slow."""


@once
def find_slow_places(job: Observed) -> SlowPlaces | None:
    """The slow places of a job, or None if the recording does not show transfer rates."""
    if not on_devices(job):
        return None
    if len(job.line.steps) - job.line.warm_up < LEAST_STEPS:
        return None
    rates = measure_rates(job)
    if rates is None:
        return None
    slowness = rates.slowness
    slowness[:, : job.line.warm_up] = np.nan
    leaves = [*map(Topology(job.window).crosses_leaves, rates.places)]
    classes, alike = _classes(leaves, rates.equals), _classes(leaves, rates.alike)
    noise = _noise(slowness, classes)
    fast, own = _fast(slowness, classes, alike, noise)
    _by_link_speed(job, rates.places, alike, fast)
    excess = slowness - fast[:, None]
    always = own > fast  # by all of its steps, so that the noise of a single one does not matter
    limit = np.maximum(math.log(RATIO), np.where(always, 0.0, SIGMAS * noise))[:, None]
    known = np.isfinite(excess)
    times = rates.single.slowness
    times -= fast[rates.single.place]
    np.exp(times, out=times)  # there are millions of them
    held_up = _held_up(job, rates, times, classes)
    slow = known & ((np.nan_to_num(excess) > limit) | held_up)
    known &= slow | ~_without_scale(known, slow, alike)[:, None]
    brief = ~(slow & ~_few_are_slow(rates, times)).any(axis=0)
    return SlowPlaces(rates, excess, Cells(known, slow, np.asarray(brief)), times, always)


def slow_periods(looked: SlowPlaces, cells: Mask) -> Iterator[SlowPeriods]:
    """When single transfers were slow, in the given places and steps."""
    single = looked.rates.single
    edge = (EDGE * single.taken_ns).astype(np.int64)
    kept = np.flatnonzero((looked.times > RATIO) & cells[single.place, single.column])
    since, until = single.ended_ns - single.taken_ns.astype(np.int64) + edge, single.ended_ns - edge
    kept = kept[np.lexsort((since[kept], single.place[kept]))]
    for at in np.split(kept, np.flatnonzero(np.diff(single.place[kept])) + 1) if kept.size else ():
        place = looked.rates.places[int(single.place[at[0]])]
        ended = np.minimum(until[at], np.append(since[at][1:], until[at][-1:]))
        yield SlowPeriods(place.members, place.is_pair, since[at], ended, looked.times[at])


def _held_up(
    job: Observed, rates: Rates, times: Floats, classes: Sequence[Ints]
) -> Mask:  # fmt: skip
    """`[place, step]`: where a single transfer delayed the step noticeably.

    It took RATIO times as long, and longer than the slowest transfer of the place's fast steps,
    because in every step some operators take longer than others of their size.
    """
    single, slow, shape = rates.single, times > RATIO, rates.taken_ns.shape
    worst = np.full(shape[0] * shape[1], -np.inf)
    any_slow: Mask = np.zeros(shape, np.bool_)
    cell = single.place * np.int64(shape[1]) + single.column  # at one index it is fast
    with np.errstate(invalid="ignore"):  # what is usual may be unknown
        np.maximum.at(worst, cell, single.taken_ns * (1 - 1 / times))
    worst = worst.reshape(shape)
    worst[~np.isfinite(rates.taken_ns)] = np.nan
    worst[:, : job.line.warm_up] = np.nan
    any_slow[single.place[slow], single.column[slow]] = True
    noise = np.zeros(len(worst))
    for places in classes:
        noise[places] = stats.step_noise(worst[places])
    usual = np.nan_to_num(_fast_fifth(worst))
    limit = usual + np.maximum(HELD_UP * job.line.typical_ns, SIGMAS * noise)
    return np.asarray(any_slow & (np.nan_to_num(worst) > limit[:, None]))


def _few_are_slow(rates: Rates, times: Floats) -> Mask:
    """`[place, step]`: where most transfers took their usual time."""
    single, shape = rates.single, rates.taken_ns.shape
    cell, size = single.place * np.int64(shape[1]) + single.column, shape[0] * shape[1]
    slow, all_of_them = (
        np.bincount(cell[times > RATIO], minlength=size),
        np.bincount(cell, minlength=size),
    )
    return np.asarray(2 * slow < all_of_them).reshape(shape)


def _classes(leaves: Sequence[int], number: Ints) -> list[Ints]:
    """Places of the same number that also lie under the same number of leaf switches."""
    found = dict[tuple[int, int], list[int]]()
    for at, key in enumerate(zip(number.tolist(), leaves, strict=True)):
        found.setdefault(key, []).append(at)
    return [np.array(same, np.int64) for same in found.values()]


def _noise(slowness: Floats, classes: Sequence[Ints]) -> Floats:
    """The scatter of single steps in each place's class."""
    noise = np.zeros(len(slowness))
    for places in classes:
        noise[places] = max(stats.step_noise(slowness[places]), stats.NOISE_FLOOR)
    return noise


def _fast(
    slowness: Floats, classes: Sequence[Ints], alike: Sequence[Ints], noise: Floats
) -> tuple[Floats, Floats]:
    """Slowness of each place when it is fast, and that of its own fast steps.

    The first is that of its equals, or of all that are alike, if these are faster.
    """
    own = _fast_fifth(slowness) + FAST_SIGMAS * noise
    fast = own.copy()
    for same, ratio in ((classes, RATIO), (alike, RATIO_OF_TWO)):
        for places in same:
            fast[places] = _usual(fast[places], ratio)
    return fast, own


def _by_link_speed(
    job: Observed, places: Sequence[Place], alike: Sequence[Ints], fast: Floats
) -> None:
    """Where all that are alike pass a network link that always ran slower than its equals, data
    would move faster by what that link lacks."""
    times = lasting_slowdown(job)
    if (times == 1).all():
        return
    behind = np.array([_slowest_link(job, one, times) for one in places])
    for same in alike:
        if (behind[same] > 1).all():
            fast[same] -= np.log(behind[same])


def _slowest_link(job: Observed, place: Place, times: Floats) -> float:
    """How many times slower the slowest link that a place passes is than most."""
    if len({*map(job.window.host_of, place.members)}) < PAIR:
        return 1.0
    rows = job.line.rows(np.array(place.members, np.int64))
    return float(times[rows[rows >= 0]].max(initial=1.0))


def _usual(levels: Floats, ratio: float) -> Floats:
    """The levels of equals, with the usual one in place of those that are slower."""
    known = np.sort(levels[np.isfinite(levels)])
    if known.size < PAIR:
        return levels
    if known.size == PAIR:
        usual, limit = float(known[0]), math.log(RATIO_OF_TWO)
    else:
        fast = _faster_ones(known)
        usual, limit = stats.median(fast), max(math.log(ratio), APART * stats.sigma(fast))
    return np.where(levels > usual + limit, usual, levels)


def _faster_ones(ordered: Floats) -> Floats:
    """Those below the first gap, of which there must be a quarter: a slow host is behind most pairs
    of a pipeline, and the middle one of all may be slow."""
    least = max(math.ceil(FEWEST_FAST * ordered.size), LEAST_FAST)
    gaps = np.flatnonzero(np.diff(ordered)[least - 1 :] > math.log(RATIO))
    return ordered[: least + int(gaps[0])] if gaps.size else ordered


def _fast_fifth(values: Floats) -> Floats:
    """The slowest of the fastest fifth of each row; NaN for rows with few steps."""
    counts = np.isfinite(values).sum(axis=1)
    at = (counts * FAST).astype(np.int64)
    ordered = np.sort(values, axis=1)
    fifth = np.take_along_axis(ordered, at[:, None], axis=1)[:, 0]
    return np.where(counts < LEAST_STEPS, np.nan, fifth)


def _without_scale(known: Mask, slow: Mask, classes: Sequence[Ints]) -> Mask:
    """Places without a usable reference: they have no equals, and some place is slow in so many of
    their steps that even their fast steps may be affected."""
    often = (known & slow.any(axis=0)).sum(axis=1) > (1 - FAST) * known.sum(axis=1)
    for places in classes:
        if known[places].any(axis=1).sum() > 1:
            often[places] = False
    return np.asarray(often)
