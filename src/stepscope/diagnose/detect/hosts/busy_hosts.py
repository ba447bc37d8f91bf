"""Hosts of a call log that take longer from call to call, where nobody waits.

Fault: the processors of one rank, or of all ranks of a host, are late: few cores, other processes,
a pause, a compilation. Only calls were recorded.
Paper: VenusTrace (Jiao et al., 2025), section 3.2.1: calls show the state of the computation; case
2, a host with eight cores, was found by them.
Ours: a host calls most operators ahead of its device, so that from one call to the next nobody
waits. Where ranks wait, their pauses grow with the step time: whatever makes steps longer, most
ranks wait for it there. The other pauses are the host's own. A rank whose own pauses are longer
than its peers' when steps are longer explains these; several must be of one host, and slower
between most of their calls: ranks that wait for their replica are so between a few.
Cost: a few passes over the calls. Cannot see: a host that was slow from the first step on; one that
is late only where others wait; all hosts at once, which look like hosts that wait everywhere;
devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect.ranks.shortest_waits import (
    FEWEST_RANKS,
    FEWEST_STEPS,
    FINER,
    MOST_BY_CHANCE,
    Program,
    programs_of,
)
from stepscope.diagnose.finding import Finding, Slowdown, may_overlap
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.chance import log_tail
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import FAST, HALF, LEAST_COST, SUSPECT_SCORE
from stepscope.diagnose.words.advice import list_ranks
from stepscope.diagnose.words.numbers import percent
from stepscope.window import Floats, Ints, Mask

FOLLOWS = 0.1
"""Of the growth of the step time that a pause shares: where ranks wait at several places, each has
a part of it. A host's own pauses do not grow with it. Our choice."""
ALONE = 0.25
"""Of what a single rank costs: another that costs as much may hold it up. Our choice."""
LONGER = 1.5
"""Times its peers' pause, in the middle of its pauses: a slow host, as in `slow_group`."""
SCORE = 0.86
"""As own time four alarm limits above noise (`thresholds.score`)."""


class BusyHosts:
    """Ranks whose hosts take longer between calls than their peers' when steps are longer."""

    name = "busy-hosts"
    needs = Needs("comm_ops.enqueue_ns", "comm_ops.step", "comm_ops.group", ranks=FEWEST_RANKS)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        comm = job.window.tables["comm_ops"]
        if comm.has("start_ns") or any(name in job.window.tables for name in FINER):
            return
        found = _culprits(job, _hosts(job, list(programs_of(job, comm))))
        if found is not None:
            yield found


def holds_up(one: Slowdown, other: Finding) -> bool:
    """Whether a slow host explains why other ranks seem slow in its steps, or why its own do."""
    if one.method != BusyHosts.name or not isinstance(other, Slowdown) or other.steps is None:
        return False
    together = may_overlap(one.steps, other.steps)
    return together and (other.lost_fraction or 0.0) <= (one.lost_fraction or 0.0) + LEAST_COST


@dataclass(frozen=True)
class _Hosts:
    """What the hosts of all ranks do between calls, `[rank, step]`; NaN where it is unknown."""

    period_ns: Floats
    """From the first call of a step to that of the next."""
    excess_ns: Floats
    """Of their own pauses above their peers'."""
    slowdown: Floats
    """The middle one of their pauses as a multiple of their peers'."""
    usual_ns: Floats
    """What their peers' own pauses take."""


def _hosts(job: Observed, programs: list[Program]) -> _Hosts:
    grids = [np.full(job.line.shape, np.nan) for _ in range(4)]
    for program in programs:
        called = program.called_ns
        pauses = np.concatenate((called[1:, :, :-1], called[:1, :, 1:])) - called[:, :, :-1]
        columns = slice(job.line.warm_up, job.line.warm_up + pauses.shape[2])
        for grid, values in zip(grids, _measured(pauses), strict=True):
            grid[program.rows, columns] = values
    return _Hosts(*grids)


def _measured(pauses: Floats) -> Iterator[Floats]:
    """The four measures of the ranks of one program, by their pauses, `[call, rank, step]`."""
    usual, lasted = np.maximum(_low(pauses), 1.0), pauses.sum(axis=0)
    yield lasted
    own = ~_held(usual, stats.column_median(lasted))
    spent = pauses[own].sum(axis=0)
    yield spent - _low(spent[None])
    yield np.median(pauses / usual[:, None], axis=0)
    yield usual[own].sum(axis=0)


def _low(values: Floats) -> Floats:
    """The lower quartile over ranks, `[call, step]`: half of a program's ranks may be slow."""
    rank = int(FAST * (values.shape[1] - 1))
    return np.asarray(np.partition(values, rank, axis=1)[:, rank])


def _held(usual: Floats, period: Floats) -> Mask:
    """Between which calls ranks wait: pauses that grow with the step time, by logarithms."""
    known = np.isfinite(period) & np.isfinite(usual).all(axis=0)
    if int(known.sum()) < FEWEST_STEPS:
        return np.ones(len(usual), np.bool_)
    log, step = np.log(np.maximum(usual[:, known], 1.0)), np.log(period[known])
    step = step - step.mean()
    slope = (log - log.mean(axis=1, keepdims=True)) @ step / max(float(step @ step), 1e-12)
    return np.asarray(slope > FOLLOWS)


def _culprits(job: Observed, hosts: _Hosts) -> Slowdown | None:
    line, period = job.line, stats.column_median(hosts.period_ns)
    judged = (np.arange(len(period)) >= line.warm_up) & np.isfinite(period)
    if int(judged.sum()) < FEWEST_STEPS:
        return None
    fast = float(np.quantile(period[judged], FAST))
    lost = np.where(judged, np.maximum(period - fast, 0.0), 0.0)
    costly = lost > LEAST_COST * fast
    if not costly.any():
        return None
    slow = np.nan_to_num(hosts.slowdown) >= LONGER
    beyond = np.nan_to_num(hosts.slowdown) - 1
    by_middle = np.where(slow, beyond * np.nan_to_num(hosts.usual_ns), 0.0)
    by_sum = np.nan_to_num(hosts.excess_ns)
    for measure, excess in ((hosts.slowdown, np.maximum(by_middle, by_sum * slow)), (None, by_sum)):
        cost = np.minimum(np.maximum(excess, 0.0), lost)
        cost[:, ~costly] = 0.0
        members = _members(job, cost)
        if members.size and _stand_out(by_sum if measure is None else measure, cost, members, lost):
            if measure is None and not _is_alone(cost, members):
                return None
            return _finding(job, hosts, members, np.median(cost[members], axis=0), lost)
    return None


def _members(job: Observed, cost: Floats) -> Ints:
    """The ranks that cost most, if they are one rank, or most of the ranks of one host."""
    by_rank = cost.sum(axis=1)
    members = np.flatnonzero(by_rank >= HALF * max(float(by_rank.max(initial=0.0)), 1.0))
    if len(members) <= 1:
        return members
    ranks = {int(rank) for rank in job.line.ranks[members]}
    known = {int(rank) for rank in job.line.ranks}
    one = any(ranks <= set(host.ranks) and len(ranks) >= HALF * len(known & set(host.ranks))
              for host in job.window.job.hosts)  # fmt: skip
    return members if one and len(ranks) < HALF * len(known) else members[:0]


def _stand_out(measure: Floats, cost: Floats, members: Ints, lost: Floats) -> bool:
    """Whether just they are the slowest more often than by chance, of the steps that hosts
    explain."""
    explained = cost.max(axis=0) > HALF * lost
    measure = np.nan_to_num(measure[:, explained])
    others = np.delete(measure, members, axis=0)
    if not len(others) or not explained.any():
        return False
    often = int((measure[members].min(axis=0) > others.max(axis=0)).sum())
    count, size = len(measure), len(members)
    one = math.lgamma(size + 1) + math.lgamma(count - size + 1) - math.lgamma(count + 1)
    chance = log_tail(often, int(explained.sum()), math.exp(one)) if often else 0.0
    return chance + math.log(count) < math.log(MOST_BY_CHANCE)


def _is_alone(cost: Floats, members: Ints) -> bool:
    """Whether nobody else is late with it: ranks that wait for the same are late together."""
    by_rank = cost.sum(axis=1)
    return len(members) == 1 and bool(
        np.delete(by_rank, members).max() < ALONE * by_rank[members].min())  # fmt: skip


def _finding(
    job: Observed, hosts: _Hosts, members: Ints, own_ns: Floats, lost_ns: Floats
) -> Slowdown:  # fmt: skip
    """The verdict; a suspect where most of what these steps lose is not theirs."""
    line = job.line
    columns = np.flatnonzero(own_ns > LEAST_COST * line.typical_ns)
    columns = columns if columns.size else np.array([int(own_ns.argmax())])
    first, stop = int(columns[0]), int(columns[-1]) + 1
    whole = float(np.nansum(stats.column_median(hosts.period_ns[:, first:stop])))
    lost = float(own_ns[first:stop].sum()) / whole
    part = float(own_ns[columns].sum() / max(float(lost_ns[columns].sum()), 1.0))
    slow = float(np.nanmedian(hosts.slowdown[members][:, columns]))
    ranks = line.ranks_of(members)
    return Slowdown(
        method="busy-hosts", cause="host" if slow >= LONGER else "unknown", ranks=ranks,
        detail=f"from call to call, where nobody waits, it takes longer than its peers in "
               f"{len(columns)} steps, {slow:.1f} times as long in the middle, "
               f"{own_ns[columns].mean() / 1e6:.1f} ms of what a step loses ({percent(part)})",
        steps=line.span(first, stop), time_ns=line.span_ns(first, stop),
        columns=frozenset(columns.tolist()), measured_cost=True, has_onset=True,
        slowdown=1 / max(1 - lost, 0.01), lost_fraction=lost,
        score=SCORE if part >= HALF else SUSPECT_SCORE,
        says=f"the host of {list_ranks(ranks)} is late with its calls and holds up all ranks for "
             f"{percent(lost)} of their time{line.since(first)}",
        values={"slowdown": slow, "part": part},
    )  # fmt: skip
