"""In which steps each place moved its data slowly: against its own fast steps, or its equals'.

A place is slow in a step if all its transfers together took RATIO times as long as in its fast
steps, or if a single one of them held up the step (`brief`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.network.likelihood import Cells
from stepscope.diagnose.network.outstanding import SlowPeriods
from stepscope.diagnose.network.rates import Rates, measure_rates
from stepscope.diagnose.network.topology import Topology
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.window import Floats, Ints, Mask

ON_DEVICES = ("kernels", "kernel_summaries", "transfers")
"""Tables that show that data moves between devices; with gloo it is the work of processors."""
AT_WORK = 0.1
"""Part of the time in which most ranks' devices run something, where counters alone tell: an idle
one reports 0, and a job that computes on its processors leaves it so."""
LEAST_STEPS = 20
"""As L2 wants them; of fewer steps `transfer` judges traces."""
RATIO = 1.5
"""As in `transfer`: half as long again."""
SIGMAS = 5.0
"""Beyond the noise of single steps of its equals."""
FAST, FAST_SIGMAS = 0.2, 0.84
"""A place's fast steps are its fastest fifth; of Gaussian noise their limit lies so far below."""
APART, LEAST_EQUALS = 4.0, 3
"""A place is slow against its equals if it lies so many times their own scatter above them."""
PAIR, RATIO_OF_TWO = 2, 2.0
"""Against its only equal, as in `transfer`: no third one tells which is usual."""
EDGE = 0.02
"""Of a transfer, at either end, where its first requests are just being posted, and its last ones
completed: clocks are fitted to microseconds, no better."""
HELD_UP = 0.03
"""Of a typical step, by which a single transfer takes longer than in fast steps. As episodes have
it: what is shorter costs nothing worth a word however often it strikes."""


@dataclass(frozen=True)
class SlowPlaces:
    """All places, what they take in their fast steps, and where they are slow."""

    rates: Rates
    excess: Floats
    """Logarithm of how many times what they take in their fast steps."""
    cells: Cells
    guilty: Mask
    """Steps in which somebody is slow for other reasons."""
    times: Floats
    """How many times as long as in fast steps each single transfer took."""


def find_slow_places(job: Observed, guilty: Mapping[int, tuple[int, int]]) -> SlowPlaces | None:
    """The places of a job, or None where it does not tell how fast data moves.

    Args:
        guilty: ranks that are slow themselves, and in which columns.
    """
    if not _on_devices(job):
        return None
    if len(job.line.steps) - job.line.warm_up < LEAST_STEPS:
        return None
    rates = measure_rates(job)
    if rates is None:
        return None
    slowness = _without_guilty(job, rates, guilty)
    classes = _classes(job, rates)
    noise = _noise(slowness, classes)
    fast = _fast(slowness, classes, noise)
    excess = slowness - fast[:, None]
    limit = np.maximum(math.log(RATIO), SIGMAS * noise)[:, None]
    known = np.isfinite(excess)
    times = np.exp(rates.single.slowness - fast[rates.single.place])
    held_up = _held_up(job, rates, times, classes)
    slow = known & ((np.nan_to_num(excess) > limit) | held_up)
    known &= slow | ~_without_scale(known, slow, classes)[:, None]
    brief = ~(slow & ~_few_are_slow(rates, times)).any(axis=0)
    busy = np.zeros(slowness.shape[1], np.bool_)
    for span in guilty.values():
        busy[slice(*span)] = True
    return SlowPlaces(rates, excess, Cells(known, slow, np.asarray(brief)), busy, times)


def slow_periods(looked: SlowPlaces, cells: Mask) -> Iterator[SlowPeriods]:
    """When single transfers were slow in some places and steps."""
    one = looked.rates.single
    edge = (EDGE * one.taken_ns).astype(np.int64)
    kept = np.flatnonzero((looked.times > RATIO) & cells[one.place, one.column])
    since, until = one.ended_ns - one.taken_ns.astype(np.int64) + edge, one.ended_ns - edge
    kept = kept[np.lexsort((since[kept], one.place[kept]))]
    for at in np.split(kept, np.flatnonzero(np.diff(one.place[kept])) + 1) if kept.size else ():
        place = looked.rates.places[int(one.place[at[0]])]
        ended = np.minimum(until[at], np.append(since[at][1:], until[at][-1:]))
        yield SlowPeriods(place.members, place.is_pair, since[at], ended, looked.times[at])


def _without_guilty(
    job: Observed, rates: Rates, guilty: Mapping[int, tuple[int, int]]
) -> Floats:  # fmt: skip
    """How slow each place was, but in warm-up and where a member is slow itself."""
    slowness = rates.slowness
    slowness[:, : job.line.warm_up] = np.nan
    for at, place in enumerate(rates.places):
        for rank in guilty.keys() & set(place.members):
            slowness[at, slice(*guilty[rank])] = np.nan
    return slowness


def _held_up(
    job: Observed, rates: Rates, times: Floats, classes: Sequence[Ints]
) -> Mask:  # fmt: skip
    """`[place, step]`: where one transfer took longer by a part of the step that counts.

    It took RATIO times as long, and longer than the worst of the place's fast steps: some operators
    of each step take longer than others of their size.
    """
    one, slow = rates.single, times > RATIO
    more_ns = one.taken_ns[slow] * (1 - 1 / times[slow])
    worst = np.zeros(rates.taken_ns.shape)
    np.maximum.at(worst, (one.place[slow], one.column[slow]), more_ns)
    worst[~np.isfinite(rates.taken_ns)] = np.nan
    worst[:, : job.line.warm_up] = np.nan
    noise = np.zeros(len(worst))
    for places in classes:
        noise[places] = stats.step_noise(worst[places])
    usual = np.nan_to_num(_fast_fifth(worst))
    limit = usual + np.maximum(HELD_UP * job.line.typical_ns, SIGMAS * noise)
    return np.nan_to_num(worst) > limit[:, None]


def _few_are_slow(rates: Rates, times: Floats) -> Mask:
    """`[place, step]`: where most transfers took as long as ever."""
    one, shape = rates.single, rates.taken_ns.shape
    cell, size = one.place * shape[1] + one.column, shape[0] * shape[1]
    slow, all_of_them = (
        np.bincount(cell[times > RATIO], minlength=size),
        np.bincount(cell, minlength=size),
    )
    return np.asarray(2 * slow < all_of_them).reshape(shape)


def _on_devices(job: Observed) -> bool:
    """Whether the job is seen to run on devices."""
    if any(job.window.table(name) is not None for name in ON_DEVICES):
        return True
    busy = stats.median(job.hardware("sm_active", job.line.warm_up, len(job.line.steps)))
    return busy >= AT_WORK


def _classes(job: Observed, rates: Rates) -> list[Ints]:
    """Equals that also lie under equally many leaves."""
    topology, found = Topology(job.window), dict[tuple[int, int], list[int]]()
    for at, place in enumerate(rates.places):
        found.setdefault((int(rates.equals[at]), topology.crosses_leaves(place)), []).append(at)
    return [np.array(places, np.int64) for places in found.values()]


def _noise(slowness: Floats, classes: Sequence[Ints]) -> Floats:
    """Scatter of single steps, of each place's class."""
    noise = np.zeros(len(slowness))
    for places in classes:
        noise[places] = max(stats.step_noise(slowness[places]), stats.NOISE_FLOOR)
    return noise


def _fast(slowness: Floats, classes: Sequence[Ints], noise: Floats) -> Floats:
    """What each place takes in its fast steps; in those of its equals, if it has no fast ones."""
    fast = _fast_fifth(slowness) + FAST_SIGMAS * noise
    for places in classes:
        own = fast[places]
        usual, spread = stats.median(own), stats.sigma(own)
        if np.isfinite(own).sum() >= LEAST_EQUALS:
            slow = own > usual + max(math.log(RATIO), APART * spread)
            fast[places] = np.where(slow, usual, own)
        elif np.isfinite(own).sum() == PAIR:
            least = float(np.nanmin(own))
            fast[places] = np.where(own > least + math.log(RATIO_OF_TWO), least, own)
    return fast


def _fast_fifth(values: Floats) -> Floats:
    """The slowest of each row's fastest fifth; NaN of rows of few steps."""
    counts = np.isfinite(values).sum(axis=1)
    at = (counts * FAST).astype(np.int64)
    ordered = np.sort(values, axis=1)
    fifth = np.take_along_axis(ordered, at[:, None], axis=1)[:, 0]
    return np.where(counts < LEAST_STEPS, np.nan, fifth)


def _without_scale(known: Mask, slow: Mask, classes: Sequence[Ints]) -> Mask:
    """Places that seem well and may not be: something is slow in so many of their steps that their
    own fast ones need not be without it, and they have no equals."""
    often = (known & slow.any(axis=0)).sum(axis=1) > (1 - FAST) * known.sum(axis=1)
    for places in classes:
        if known[places].any(axis=1).sum() > 1:
            often[places] = False
    return np.asarray(often)
