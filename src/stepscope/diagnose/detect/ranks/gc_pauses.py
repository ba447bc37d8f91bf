"""Garbage collection: the pauses of the interpreter, compared with a rank's excess, and their cost.

Fault: Python's collector stops one rank, and so all of them, for longer than on its peers.
Paper: ARGUS (2026), table 6, lists the GC pause as seen by L1 and L5.
What differs: pauses are measured, so no inference is needed. They explain an excess of which they
are at least half. `storms` also finds pauses too rare for L2, which trims every fifth step.
Cost: one count over the pauses. Cannot see: pauses below the collector's reporting limit.

Pauses cost as much as the steps with one take longer than those without (`pause_cost_ns`). The time
of a pause is measured, and so is that of its step; no model of who waits for whom has to lie
between them. Phases of devices do not contain a pause of the host, and whoever computes a cost from
phases finds none. A pause costs no more than it lasts, and what a host that runs ahead of its
device makes up for costs nothing: then steps are not longer.
Cost: a running median of the steps. Cannot see: what pauses cost where every step has one of the
same length.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect.ranks.in_turns import lengthening
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.chance import poisson_tail
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import FALSE_ALARMS, HALF
from stepscope.window import Floats, Ints, Mask, union

STORM_SHARE = 0.05
"""Share of the step time that the extra pauses of a rank must cost to be a fault without other
evidence. A full collection every few hundred steps, as in healthy jobs, stays below 2 %. Our
simulator."""
STORM_STEPS = 10
"""Pauses in fewer steps than this are a passing episode. Our simulator."""
STORM_RATIO = 3.0
"""Times the pauses of the peers: healthy ranks run one program and collect alike. Our simulator."""
LEAST_STEPS = 5
"""As many steps with a pause, and without, are needed to know the usual step time; with fewer
without one it follows from how steps vary with their pauses. Our simulator."""
BEYOND = 3.0
"""Standard deviations from which on a step is longer than usual. Our simulator."""
NEAR = 11
"""Steps without a pause whose median is the usual step around one with it: a job may become slower
meanwhile. Our choice."""


@dataclass(frozen=True)
class Storm:
    """A rank that collects garbage far more than its peers, in columns [first, stop)."""

    row: int
    first: int
    stop: int
    pause_ns: float
    """Extra pause per step of the range."""


def extra_pause_ns(job: Observed, row: int, first: int, stop: int) -> float:
    """Pause per step of one rank beyond the median of the others; 0 where none were recorded."""
    if job.pauses is None or stop <= first:
        return 0.0
    means = job.pauses[:, first:stop].mean(axis=1)
    others = np.delete(means, row)
    return float(means[row] - (np.median(others) if others.size else 0.0))


def storms(job: Observed) -> list[Storm]:
    """Ranks whose pauses alone cost a notable share of the step time."""
    if job.pauses is None or len(job.line.ranks) < 2:
        return []
    skip = job.line.warm_up
    pauses = job.pauses[:, skip:]
    normal = stats.leave_one_out_median(pauses.mean(axis=1)[:, None])
    hits = pauses > STORM_RATIO * np.maximum(normal, 1.0)
    often = np.flatnonzero(hits.sum(axis=1) >= STORM_STEPS)
    found = [_storm(job, pauses, int(row), skip) for row in often]
    return [storm for storm in found if storm is not None]


def _storm(job: Observed, pauses: Floats, row: int, skip: int) -> Storm | None:
    """The storm of a rank, in the stretch in which it pauses most: a collection long before, which
    all ranks have now and then, is no part of it."""
    stretch = stats.worst_stretch(pauses[None, row], HALF * float(pauses[row].mean()))
    first, stop = int(stretch.first[0]), int(stretch.stop[0])
    own_ns = float(pauses[row, first:stop].mean())
    peers_ns = float(np.median(np.delete(pauses[:, first:stop].mean(axis=1), row)))
    period = stats.median(job.line.job_period_ns[skip:])
    share = (own_ns - peers_ns) / period if period > 0 else 0.0
    if share < STORM_SHARE or own_ns < STORM_RATIO * peers_ns:
        return None
    return Storm(row, skip + first, skip + stop, own_ns - peers_ns)


def collecting_function(
    job: Observed, first: int, stop: int, rows: Collection[int] | None = None
) -> str | None:
    """The user's function in which most of the pauses of these columns happened, by the samples
    within them: it calls the collector, or creates what makes it run. None where none shows it.

    Args:
        rows: the ranks that count; None: all.
    """
    samples, table = job.samples, job.window.table("pauses")
    if samples is None or table is None:
        return None
    column = job.line.column_at(samples.time_ns)
    chosen = (column >= first) & (column < stop)
    chosen &= np.isin(samples.row, sorted(rows)) if rows is not None else True
    pauses = table.take(table.strings("kind").equals("gc"))
    paused = np.zeros(len(samples.row), np.bool_)
    for rank, own in pauses.per_rank():
        of_rank = np.flatnonzero(chosen & (samples.row == job.line.rows(np.array([rank]))[0]))
        begin = own.ints("start_ns")
        inside = union(begin, begin + own.ints("duration_ns"))
        at = samples.time_ns[of_rank]
        paused[of_rank] = inside.within(at, at + 1) > 0
    return samples.users_caller(lambda _: False, paused) or None if paused.any() else None


def risen_pause_ns(
    job: Observed, before: slice, after: slice, culprits: Collection[int] = ()
) -> float:
    """By how much the longest pause per step grew, among all rows but those of culprits.

    The rank that pauses the most is left out, too: what it alone does does not concern all.
    """
    if job.pauses is None:
        return 0.0
    others = np.delete(job.pauses, sorted(culprits), axis=0)
    if not len(others):
        return 0.0
    if len(others) > 1:
        others = np.delete(others, int(others[:, after].sum(axis=1).argmax()), axis=0)
    worst = others.max(axis=0)
    if not worst[before].size or not worst[after].size:
        return 0.0
    return float(worst[after].mean() - worst[before].mean())


def pause_cost_ns(period: Floats, longest: Floats) -> Floats:
    """What each step loses to its longest pause; 0 in all if steps do not get longer with pauses.

    Args:
        period: how long each step takes; NaN where that is unknown.
        longest: the longest pause of each step; 0 without one.
    """
    known = np.isfinite(period)
    paused, without = (longest > 0) & known, (longest <= 0) & known
    if paused.sum() < LEAST_STEPS:
        return np.zeros_like(longest)
    if without.sum() < LEAST_STEPS:
        return np.where(paused, longest * lengthening(np.nan_to_num(period), longest), 0.0)
    longer = period - _usual_around(period, np.flatnonzero(without))
    noise = max(stats.sigma(longer[without]), stats.NOISE_FLOOR * stats.median(period[without]))
    long = longer > BEYOND * noise
    if _by_chance(long[paused], long[without]) > FALSE_ALARMS:
        return np.zeros_like(longest)
    return np.where(paused, np.minimum(longer, longest), 0.0)


def _by_chance(paused: Mask, without: Mask) -> float:
    """The probability that so many steps with a pause are long if pauses had nothing to do with
    it. Something else may hide what they cost in a part of the steps."""
    rate = (without.sum() + 1) / (without.size + 1)
    return poisson_tail(int(paused.sum()), rate * paused.size)


def _usual_around(period: Floats, without: Ints) -> Floats:
    """How long each step would have been: the median of the nearest steps without a pause."""
    near = min(NEAR, without.size)
    medians = stats.row_medians(np.lib.stride_tricks.sliding_window_view(period[without], near))
    first = np.searchsorted(without, np.arange(period.size)) - near // 2
    return np.asarray(medians[np.clip(first, 0, medians.size - 1)])
