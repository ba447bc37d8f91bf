"""Hosts that get too little processor time in a part of the job, while steps take longer.

Fault: the control group of a host's ranks may use less processor time than they need, or other
processes use it. Which of its ranks is late changes from step to step, and in pipelines it hides in
waiting for messages, so no rank need stand out by its own time.
Paper: none. The kernel counts for how long it stops a group (`cpu_throttled`), and how long threads
wait for a processor (`run_delay`), so nothing about the cause is inferred; what it costs is
measured by the steps before and after.
Rule: the steps in which the ranks of one host are stopped, or wait, most beyond those of all others
(Page's cumulative sum), for a tenth of the time at least, twice as long as the others, and beyond
what hosts differ by now and then, and longer steps than elsewhere.
Cost: one mean over the samples for every few steps. Cannot see: what all hosts suffer alike, or
what was there from the first step on, but in whole stages of a pipeline.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.detect.work.imbalance import lost_by_stages
from stepscope.diagnose.finding import Cause, Decision, Finding, Slowdown, may_overlap
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import (
    FALSE_ALARMS,
    HALF,
    LEAST_COST,
    OTHER_PROCESSES,
    THROTTLED,
)
from stepscope.diagnose.words.advice import name_ranks
from stepscope.diagnose.words.numbers import percent
from stepscope.window import Ints

BLOCK = 5
"""Steps whose samples are taken together: a short step has none of its own. Our choice."""
LEAST_BLOCKS = 2
"""Blocks on either side of a change that a difference needs. Our choice."""
SCORE = 0.9
"""The cause is counted by the kernel, and the cost is measured: as sure as a measured cause."""
CROWDED_SCORE, LEAST_CROWDED = 0.8, 0.05
"""Waiting for a processor is counted, too, but ranks of a busy machine wait now and then, and some
steps are longer: less is not reported. Of 13 healthy jobs of our lab and 60 with other faults, one
waits a tenth of the time beyond its peers, for five steps that are no longer than others."""


@dataclass(frozen=True)
class _Stop:
    rows: Ints
    first: int
    stop: int
    share: float
    """Of the time, beyond the other hosts' ranks."""


class CrowdedHosts:
    """The host whose ranks wait for a processor while steps take longer, if nobody else is slow."""

    name = "crowded-hosts"
    needs = Needs("hardware:run_delay", "steps", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        stop = _most_stopped(job, "run_delay")
        loss = 0.0 if stop is None or so_far.blamed else _loss(job, stop)
        if stop is not None and loss >= LEAST_CROWDED:
            yield _crowded(job, stop, loss)


class QuotaHosts:
    """The host whose ranks a quota stops while steps take longer."""

    name = "quota-hosts"
    needs = Needs("hardware:cpu_throttled", "steps", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        stop = _most_stopped(job, "cpu_throttled")
        if stop is None:
            return
        loss = _loss(job, stop)
        if loss >= LEAST_COST:
            yield _found(job, stop, job.line.ranks_of(stop.rows), loss)


def stops(one: Slowdown, other: Finding) -> bool:
    """Whether a quota explains why ranks of its host seem slow in its steps, which cost twice what
    is known of these."""
    if one.method != QuotaHosts.name or not isinstance(other, Slowdown):
        return False
    more = (other.lost_fraction or 0.0) < HALF * (one.lost_fraction or 0.0)
    return more and {*other.ranks} <= {*one.ranks} and may_overlap(one.steps, other.steps)


def is_known(one: Slowdown, named: frozenset[int]) -> bool:
    """Whether a quota stops ranks that are named anyway."""
    return one.method == QuotaHosts.name and not named.isdisjoint(one.ranks)


def _most_stopped(job: Observed, metric: str) -> _Stop | None:
    """The host whose ranks are stopped most by a metric, and in which steps."""
    edges = np.arange(job.line.warm_up, len(job.line.steps) + 1, BLOCK)
    hosts = job.host_rows
    if len(hosts) < 2 or edges.size <= 2 * LEAST_BLOCKS:
        return None
    edges[-1] = len(job.line.steps)
    stopped = np.array([job.hardware(metric, int(first), int(stop))
                        for first, stop in itertools.pairwise(edges)]).T  # fmt: skip
    each = np.array([stats.column_median(stopped[rows]) for rows in hosts])
    others = np.array([np.nanmax(np.delete(each, at, axis=0), axis=0, initial=0.0)
                       for at in range(len(hosts))])  # fmt: skip
    beyond = each - others
    parts = stats.worst_stretch(beyond, THROTTLED)
    at = int(np.argmax(np.nan_to_num(parts.mean) * (parts.stop - parts.first)))
    share, first, stop = float(parts.mean[at]), int(parts.first[at]), int(parts.stop[at])
    if share < max(THROTTLED, float(others[at, first:stop].mean())):
        return None
    # with more busy threads than processors all ranks wait for a fifth of the time, for a second
    # now those of one host, now those of another
    if not stats.is_no_chance(beyond, THROTTLED, parts, FALSE_ALARMS)[at]:
        return None
    return _Stop(hosts[at], int(edges[first]), int(edges[stop]), share)


def _loss(job: Observed, stop: _Stop) -> float:
    """The share of these steps by which they are longer than all others. Without others, as from
    the first step on, what whole stages of these ranks take longer than other stages, but no more
    than they were stopped; else 0."""
    period, at = job.line.job_period_ns, np.arange(len(job.line.steps))
    known, inside = np.isfinite(period), (at >= stop.first) & (at < stop.stop)
    here, elsewhere = period[known & inside], period[known & ~inside & (at >= job.line.warm_up)]
    if min(here.size, elsewhere.size) < LEAST_BLOCKS * BLOCK:
        return min(lost_by_stages(job, stop.rows), stop.share)
    return 1.0 - stats.median(elsewhere) / max(float(here.mean()), 1.0)


def _crowded(job: Observed, stop: _Stop, loss: float) -> Slowdown:
    line = job.line
    ranks = line.ranks_of(stop.rows)
    taken = stats.median(job.hardware("stranger_cpu_util", stop.first, stop.stop)[stop.rows])
    cause: Cause = "contention" if taken >= OTHER_PROCESSES else "host"
    says = f"{name_ranks(ranks)} wait for a processor for {percent(stop.share)} of the time"
    says += line.since(stop.first)
    return replace(
        _found(job, stop, ranks, loss), method=CrowdedHosts.name, cause=cause, says=says,
        detail=f"{says}, beyond all other hosts; steps take {1 / max(1 - loss, 0.01):.2f} times as "
        "long then",
        score=CROWDED_SCORE, values={"run_delay": stop.share, "other_processes": taken},
        decisions=(Decision("waits-for-processor", True, stop.share, THROTTLED, says),),
    )  # fmt: skip


def _found(job: Observed, stop: _Stop, ranks: tuple[int, ...], loss: float) -> Slowdown:
    line, who = job.line, name_ranks(ranks)
    says = f"a quota of processor time stops {who} for {percent(stop.share)} of the time"
    says += line.since(stop.first)
    detail = (
        f"the kernel stops the control group of {who} for {percent(stop.share)} of the time, and "
        f"no other host's; steps take {1 / max(1 - loss, 0.01):.2f} times as long then"
    )
    return Slowdown(
        QuotaHosts.name, "host", detail, ranks,
        steps=line.span(stop.first, stop.stop), time_ns=line.span_ns(stop.first, stop.stop),
        slowdown=1 / max(1 - loss, 0.01), lost_fraction=loss, score=SCORE, says=says,
        values={"throttled": stop.share},
        decisions=(Decision("throttled", True, stop.share, THROTTLED, detail),),
        has_onset=stop.first > line.warm_up, measured_cost=True,
    )  # fmt: skip
