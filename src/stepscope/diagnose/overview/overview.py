"""Overview of where time goes: parts of steps, limits, last arrivals, functions, and periods.

Members of a group that belong to different pipeline stages arrive when their stage is done. There
the last arrival is last by design, so such groups are left out.

What limits an average step besides compute is communication, copies, or a late host. Traces say all
of it. Other jobs show only what is not the ranks' own time: transfers, and waiting
for one another, which is communication, too.
Recurring slow steps are assigned to the verdicts that they belong to; the others stand beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from statistics import median
from typing import Literal

import numpy as np

from stepscope.diagnose.account.ranges import Judge
from stepscope.diagnose.detect.steps.periods import CAUSES, EVIDENCE
from stepscope.diagnose.finding import Evidence, Verdict, may_overlap
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.shown import FunctionUse, LastArrival, Limit, Period, RankPhase, RankTime
from stepscope.diagnose.views.arrivals import Arrivals
from stepscope.diagnose.views.patterns import Patterns
from stepscope.diagnose.views.peers import across_stages
from stepscope.diagnose.views.unnamed import is_staged
from stepscope.window import Ints

LATE_SHARE = 0.01
"""Waiting that costs a smaller share of the step time is not listed. Our simulator."""
_PARTS = (
    "compute_ns", "exposed_ns", "hidden_ns", "copy_ns",
    "host_wait_ns", "kernel_wait_ns", "other_ns",
)  # fmt: skip
Part = Literal["exposed_ns", "copy_ns", "host_wait_ns", "kernel_wait_ns", "other_ns"]
PARTS: tuple[Part, ...] = ("exposed_ns", "copy_ns", "host_wait_ns", "kernel_wait_ns", "other_ns")
NOTABLE_SHARE = 0.25
"""Share of a step that is worth a sentence; profiling itself delays the host a little. Our
simulator."""
MOST = 30
"""Functions that are listed; those with more than one percent are seldom more than twenty (EROICA,
section 4.3). Paper."""

OWN_THREADS = "stepscope-"
"""What the names of our own threads in a training process begin with: not the job's functions."""


def rank_times(job: Observed) -> tuple[RankTime, ...]:
    """Means over the steps of each rank; over the whole recording if there are no steps."""
    found = job.breakdown
    if found is None:
        return ()
    table = found.steps if len(found.steps) else found.ranks
    return tuple(RankTime(rank, *(int(rows.ints(part).mean()) for part in _PARTS))
                 for rank, rows in table.per_rank())  # fmt: skip


def rank_phases(job: Observed) -> Iterator[RankPhase]:
    """The median own time, in whole nanoseconds, of each rank and phase that has one."""
    for phase, own in job.own.items():
        medians = np.mean([stats.row_medians(own[:, at]) for at in job.cycle.kinds], axis=0)
        known = np.isfinite(medians)
        ranks, times = job.line.ranks[known].tolist(), medians[known].astype(np.int64).tolist()
        yield from map(RankPhase, ranks, repeat(phase), times)


def last_arrivals(job: Observed) -> tuple[LastArrival, ...]:
    """The rank whose late arrivals cost the most, per group and operator; the costliest first."""
    arrivals = job.arrivals
    if arrivals is None or not len(job.line.steps):
        return ()
    kinds = arrivals.group.codes.astype(np.int64) * len(arrivals.op.values) + arrivals.op.codes
    kinds = np.where(arrivals.group.equals(*across_stages(job.window)), -1, kinds)
    found = [_latest(job, arrivals, np.flatnonzero(kinds == kind))
             for kind in np.unique(kinds) if kind >= 0]  # fmt: skip
    least = LATE_SHARE * job.line.typical_ns
    costly = [one for one in found if one.caused_ns >= least]
    return tuple(sorted(costly, key=lambda one: -one.caused_ns))


def _latest(job: Observed, arrivals: Arrivals, operators: Ints) -> LastArrival:
    ranks = len(job.line.ranks)
    last = arrivals.last_rank[operators]
    caused = np.bincount(last, weights=arrivals.alone_ns[operators], minlength=ranks)
    row, first = int(np.argmax(caused)), int(operators[0])
    alone_ns = arrivals.alone_in(operators[last == row], len(job.line.steps))
    return LastArrival(
        group=arrivals.group[first] or "", op=arrivals.op[first] or "",
        rank=int(job.line.ranks[row]), last=int((last == row).sum()), operators=int(last.size),
        caused_ns=int(alone_ns.mean()),
    )  # fmt: skip


def limits(job: Observed, times: Sequence[RankTime]) -> tuple[Limit, ...]:
    """Parts that take a quarter or more of an average step on the median rank, largest first."""
    return by_times(times) if times else _communicating(job)


def by_times(times: Sequence[RankTime]) -> tuple[Limit, ...]:
    """The same by where the ranks' time went."""
    if not times:
        return ()
    medians: Mapping[Part, float] = {
        part: median(getattr(time, part) for time in times) for part in PARTS
    }
    whole = sum(medians.values()) + median(time.compute_ns for time in times)
    notable = [Limit(part, value / whole) for part, value in medians.items()
               if whole > 0 and value >= NOTABLE_SHARE * whole]  # fmt: skip
    return tuple(sorted(notable, key=lambda one: -one.share))


def _communicating(job: Observed) -> tuple[Limit, ...]:
    """The part of the steps that is no rank's own, where all own time is known; pipelines have
    bubbles besides."""
    line = job.line
    if not job.own.phases or job.own.hidden or job.own.skipped or is_staged(job.window):
        return ()
    known = np.where(line.period_ns > 0, line.period_ns, np.nan)
    share = stats.median(1.0 - (job.total / known)[:, line.warm_up :])
    communicates = "comm_ops" in job.window.tables or job.own.marked
    return (Limit("exposed_ns", share),) if communicates and share >= NOTABLE_SHARE else ()


def functions(job: Observed) -> tuple[FunctionUse, ...]:
    """Of the last window of profiling, the function with the largest share on any rank first."""
    if not job.patterns:
        return ()
    window = job.patterns[-1]
    judge = Judge(window, job.expected)
    found = [_use(job, judge, window, at) for at, one in enumerate(window.functions)
             if OWN_THREADS not in (one.thread or "")]  # fmt: skip
    return tuple(sorted(found, key=lambda one: (-one.most, one.name))[:MOST])


def _use(job: Observed, judge: Judge, window: Patterns, at: int) -> FunctionUse:
    one, beta = window.functions[at], window.beta[at]
    expected = judge.expected(one)
    worst = window.rows[int(np.argmax(beta[window.rows]))]
    mu = stats.median(window.mu[at]) if np.isfinite(window.mu[at]).any() else None
    return FunctionUse(
        one.frame, one.kind, one.caller, one.thread, window.steps, len(window.rows),
        float(beta[window.rows].min()), stats.median(beta), float(beta[worst]),
        int(job.line.ranks[worst]), one.resource, mu,
        None if one.waits and not judge.is_learned(one) else expected.beta.high,
        judge.is_learned(one),
    )  # fmt: skip


def with_periods(
    verdicts: Sequence[Verdict], found: Sequence[Period]
) -> tuple[tuple[Verdict, ...], tuple[Period, ...]]:
    """Verdicts with the distance of their slow steps as evidence; periods with their verdict."""
    shown = list(verdicts)
    owned = []
    for one in found:
        at = next((at for at, each in enumerate(verdicts) if _is_about(each, one)), None)
        owned.append(replace(one, verdict=at))
        if at is not None:
            more = Evidence(EVIDENCE, one.says, {"every": one.every, "unit": one.unit})
            shown[at] = replace(shown[at], evidence=(*shown[at].evidence, more))
    return tuple(shown), tuple(owned)


def _is_about(verdict: Verdict, one: Period) -> bool:
    """Whether a verdict names the same ranks at the time, or the same cause of all ranks."""
    if verdict.kind != "slowdown" or not may_overlap(verdict.steps, one.steps):
        return False
    if one.ranks:
        return set(one.ranks) <= set(verdict.ranks)
    return not verdict.ranks and verdict.cause == CAUSES[one.source]
