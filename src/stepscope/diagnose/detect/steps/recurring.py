"""Slow steps of a job that recur at regular distances, the ranks and phases whose time they take,
and the cost.

    series: the job's steps, phases of all ranks, the ranks with most slow steps
       ─▶ steps slower than their neighbours ─▶ combs (`numeric.combs`) ─▶ place and cost

Steps are compared with the median of their neighbours, so that a job may become slower meanwhile,
and where they come in a short cycle (`views.cycle`), as if all of them did the same work.
What the job's own steps do not show costs nothing, and is left out.
Cost: a running median per series; combs of at most `MOST_SERIES` series.
Cannot see: steps before or after a gap in the recording as neighbours; combs of more than
`MOST_RANKS` single ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect.steps.duties import ALL_RANKS
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.combs import Axis, Comb, combs
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.breakdown import is_communicating
from stepscope.window import Floats, Ints, Mask

NEIGHBOURS = 31
"""Steps whose median is the usual step, of which less than a third may be slow. Our choice."""
SLOW_SIGMAS = 4.0
"""Of Gaussian noise 3 in 100,000 steps are slower than this. These do no harm: a comb is judged
against slow steps at random places. Statistics."""
SLOW_SHARE = 0.02
"""And slower by this share of a step, below which nobody would act, as `thresholds`. Our
simulator."""
LEAST_STEPS = 30
"""Five slow steps, and as many others around each. Statistics."""
SHARES = 2
"""Half of the false alarms are left to the job's own steps, half to all phases and ranks together,
so that a job of many ranks shows its checkpoints as one of few does. Our choice."""
MOST_COMBS = 3
"""Combs of one series. Our choice."""
MOST_RANKS = 8
"""Ranks that are looked at alone: those with most slow steps. Our choice."""
SHOWN = 0.01
"""Share of the time from which on it is shown, as of last arrivals. Our simulator."""


@dataclass(frozen=True)
class Slow:
    """The steps of a series that are slower than their neighbours; runs of them count as one."""

    excess_ns: Floats
    slow: Mask
    begins: Ints
    """The column of each run in which it becomes long: a hiccup just before is none of it."""

    def run(self, begin: int) -> Ints:
        """The columns of the run that begins there."""
        stop = begin
        while stop < self.slow.size and self.slow[stop]:
            stop += 1
        return np.arange(begin, stop)


@dataclass(frozen=True)
class Recurrent:
    """A comb, and what is slow in its steps. Columns are those of the whole grid."""

    comb: Comb
    runs: tuple[Ints, ...]
    """The slow columns of each of its events."""
    usual: Ints
    """Columns between them in which nothing is slow."""
    excess_ns: float
    """What each event costs the job."""
    lost_fraction: float
    rows: tuple[int, ...] = ()
    """Ranks whose own time it is; empty: all, changing ones, or unknown."""
    phase: str | None = None
    kernel: str | None = None

    @property
    def columns(self) -> Ints:
        return np.concatenate(self.runs)


def recurring(job: Observed) -> list[Recurrent]:
    """All recurring slow steps of a job, those of the job as a whole first."""
    line, skip = job.line, job.line.warm_up
    period = job.period_ns[skip:]
    if period.size < LEAST_STEPS or not np.isfinite(period).any():
        return []
    axis = Axis(line.steps[skip:], line.begins_ns[skip:], line.typical_ns)
    whole = slow_steps(period, line.typical_ns)
    others = SHARES * (len(job.own.phases) + len(line.ranks))
    found: list[Recurrent] = []
    for one in [whole, *_others(job)]:
        tests = SHARES if one is whole else others
        known = np.concatenate([np.zeros(0, np.int64), *(each.columns for each in found)])
        for comb in combs(axis, one.begins, tests, MOST_COMBS):
            if np.isin(comb.columns + skip, known).mean() < HALF:
                found += _weighed(job, comb, one, whole)
    return found


def slow_steps(series: Floats, typical_ns: float) -> Slow:
    """Steps above the median of their neighbours by more than noise, and enough to matter."""
    excess = series - running_median(series)
    limit = max(SLOW_SIGMAS * stats.sigma(excess), SLOW_SHARE * typical_ns)
    excess = np.nan_to_num(excess)
    slow = excess > limit
    begins = [int(run[np.argmax(excess[run] >= HALF * excess[run].max())])
              for run in stats.runs_of(np.flatnonzero(slow))]  # fmt: skip
    return Slow(excess, slow, np.array(begins, np.int64))


def running_median(series: Floats) -> Floats:
    """The median of each step and its neighbours; at the ends, of the nearest `NEIGHBOURS`."""
    width = min(NEIGHBOURS, series.size)
    around = np.lib.stride_tricks.sliding_window_view(series, width)
    middle = stats.row_medians(around)
    return np.pad(middle, (width // 2, series.size - middle.size - width // 2), mode="edge")


def _others(job: Observed) -> Iterator[Slow]:
    """The phases of all ranks, and single ranks with most time in slow steps."""
    skip = job.line.warm_up
    levelled = job.cycle.levelled
    for own in job.own.own if len(job.line.ranks) > 1 else ():
        known = np.isfinite(own[:, skip:]).any(axis=1)
        if known.any():  # a phase that is not in every step takes no time in the others
            common = levelled(stats.column_median(np.nan_to_num(own[known])))[skip:]
            yield slow_steps(common, job.line.typical_ns)
    own = np.array([levelled(one)[skip:] for one in job.total])
    excess = np.nan_to_num(own - stats.row_medians(own)[:, None])
    noise = stats.MAD_TO_SIGMA * stats.row_medians(np.abs(excess))
    beyond = np.maximum(SLOW_SIGMAS * noise, SLOW_SHARE * job.line.typical_ns)[:, None]
    weight = np.where(excess > beyond, excess, 0.0).sum(axis=1)
    for row in np.argsort(-weight, kind="stable")[:MOST_RANKS]:
        if weight[row] > 0:
            yield slow_steps(np.nan_to_num(own[row]), job.line.typical_ns)


def _weighed(job: Observed, comb: Comb, one: Slow, whole: Slow) -> Iterator[Recurrent]:
    """The comb with its cost and place, if the job's own steps show enough of it."""
    skip = job.line.warm_up
    runs = [one.run(int(begin)) for begin in comb.columns]
    job_ns = float(np.mean([whole.excess_ns[run].sum() for run in runs]))
    own_ns = float(np.mean([one.excess_ns[run].sum() for run in runs]))
    first, stop = int(runs[0][0]), int(runs[-1][-1]) + 1
    lost = min(job_ns, own_ns) * len(runs)
    share = lost / max(float(np.nansum(job.line.job_period_ns[skip + first : skip + stop])), 1.0)
    busy = whole.slow | one.slow
    busy |= np.append(False, busy[:-1])
    usual = first + np.flatnonzero(~busy[first:stop])
    if job_ns < HALF * own_ns or share < SHOWN or not usual.size:
        return
    found = Recurrent(comb, tuple(run + skip for run in runs), usual + skip,
                      min(job_ns, own_ns), share)  # fmt: skip
    yield placed(job, found)


def placed(job: Observed, found: Recurrent) -> Recurrent:
    """With the ranks, phase and kernel that have most of the excess."""
    by_phase = np.array([rise(own, found) for own in job.own.own])
    if not by_phase.size:
        return found
    by_rank = by_phase.sum(axis=0)
    rows = np.flatnonzero(by_rank >= HALF * by_rank.max())
    if by_rank.max() < HALF * found.excess_ns:
        return found
    of_rows = by_phase[:, rows].mean(axis=1)
    at = int(np.argmax(of_rows))
    return Recurrent(
        found.comb, found.runs, found.usual, found.excess_ns, found.lost_fraction,
        () if rows.size >= ALL_RANKS * len(by_rank) else tuple(map(int, rows)),
        job.own.phases[at] if of_rows[at] >= HALF * of_rows.sum() else None,
        _kernel(job, found, rows),
    )  # fmt: skip


def rise(values: Floats, found: Recurrent) -> Floats:
    """How much longer than in its usual steps each rank takes in an event, from `[rank, step]`; 0
    if unknown."""
    values = np.nan_to_num(values)
    usual = stats.row_medians(values[:, found.usual])
    inside = values[:, found.columns].sum(axis=1) - usual * found.columns.size
    return np.asarray(inside / len(found.runs))


def _kernel(job: Observed, found: Recurrent, rows: Ints) -> str | None:
    """The kernel with most of the excess on these ranks, among kernels that do not wait for other
    ranks."""
    table = job.window.table("kernels")
    if table is None or not table.has("step", "kernel", "duration_ns"):
        return None
    column, names = job.line.columns(table.ints("step")), table.strings("kernel")
    code, lasted = names.codes.astype(np.int64), table.ints("duration_ns")
    kept = np.isin(job.line.rows(table.ints("rank")), rows)
    spent = []
    for columns in (found.columns, found.usual):
        chosen = kept & np.isin(column, columns) & (code >= 0)
        whole = stats.sums(code[chosen], lasted[chosen], len(names.values))
        spent.append(whole / columns.size / rows.size)
    more = (spent[0] - spent[1]) * found.columns.size / len(found.runs)
    more[[is_communicating(name) for name in names.values]] = 0.0
    at = int(np.argmax(more)) if more.size else -1
    return names.values[at] if at >= 0 and more[at] >= HALF * found.excess_ns else None
