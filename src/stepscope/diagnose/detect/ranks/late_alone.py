"""The ranks for which alone all others wait, where nothing recorded shows why.

Fault: whatever slows a rank, or all ranks of a host, where that does not show as their own time:
their passes may hide waiting, a thread works that no recorder follows, or it lasts for few steps.
Papers: Holmes (2025) and VenusTrace (2025), section 4, follow the longest operators. Here the last
arrival counts (`views.arrivals`).
Rule: of the operators of a step that one counts in which the others wait for longest: ranks that do
not wait in between are late for all of them. Lateness in turns is noise and cancels out: what some
cause beyond any others is a loss. Ranks that are late together, as those of a host or of a group
within the model, make nobody wait as single ranks, so each of these units is looked at. In a
group's own operators lateness adds up, and shows which member holds up the others. Where no clocks
could be aligned, ranks are compared within their hosts only. Calls that return at once show only
by how much a rank is later than usual, and suspects.
Cost: a few passes over the arrivals. Cannot see: ranks that others held up in operators that were
not recorded; jobs whose ranks have several roles, of which one waits for the other by design.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect.ranks.transient import SPIKE_SHARE, SPIKE_Z
from stepscope.diagnose.detect.steps.duties import RARE
from stepscope.diagnose.detect.steps.step_time import scheduled
from stepscope.diagnose.finding import Slowdown
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.chance import log_tail
from stepscope.diagnose.numeric.combs import LEAST_DISTANCE
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.operators.unrecorded import unrecorded_groups
from stepscope.diagnose.prepare.matching import POINT_TO_POINT
from stepscope.diagnose.thresholds import FALSE_ALARMS, HALF, LEAST_COST, SUSPECT_SCORE
from stepscope.diagnose.views.arrivals import Arrivals
from stepscope.diagnose.views.hidden_waits import BLOCKING_KINDS
from stepscope.diagnose.views.peers import across_stages
from stepscope.diagnose.views.unnamed import is_staged
from stepscope.diagnose.words.advice import name_ranks
from stepscope.diagnose.words.numbers import percent
from stepscope.window import Floats, Ints, Mask

LEAST_LATE = 0.05
"""Of the time that all others wait for some alone, beyond what they wait for any others. Of 209
healthy jobs of simulators that nobody here wrote, none exceeds 3.3 % where it lasts for three steps
or more. Measured on these."""
SCORE = 0.6
"""Of 33 such findings in 1,485 recorded and simulated jobs, 31 were the faulty rank, its host or
its group; no healthy job was accused. Measured."""
LEAST_STEPS = 3
"""In which they are late: single pauses happen to any rank, as in `transient`. Our simulator."""
LEAST_OF_FEW = 0.1
"""Of the time, that pauses in fewer steps or on a schedule cost for a suspicion, and lateness in a
recording of less than 20 steps, where ranks differ by more for good: more is not healthy
(contract)."""
BLOCK, LEAST_BLOCKS = 5, 8
"""Steps whose lateness is compared at once, to know the memory of its noise, and how many of these
that takes. Our choice."""


class LateAlone:
    """Ranks for which alone all others wait, where nothing else was found."""

    name = "late-alone"
    needs = Needs("comm_ops", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        judged = len(job.line.steps) - job.line.warm_up
        if so_far.blamed or job.arrivals is None or judged < 1 or job.has_roles:
            return
        found = (_latest(job, job.arrivals, unit) for unit in _units(job))
        each = [one for one in found if one is not None and not _may_be_held(job, one.rows)]
        most = max((one.lost for one in each), default=0.0)
        finest = next((one for one in each if one.lost >= HALF * most > 0), None)
        score = None if finest is None else _score(job, finest)
        if finest is not None and score is not None:
            yield _finding(job, job.arrivals, finest, score)


def _is_known(job: Observed) -> bool:
    """Whether it is known when operators ended: where only calls were recorded that return at once,
    hosts run ahead of their devices, each as far as it likes."""
    comm = job.window.table("comm_ops")
    return comm is not None and comm.knows("end_ns")


@dataclass(frozen=True)
class _Unit:
    """A division of the ranks: by themselves, groups within the model, hosts."""

    number: Ints
    """By row."""
    is_host: bool = False


def _units(job: Observed) -> Iterator[_Unit]:
    """All divisions, the finest first."""
    yield _Unit(np.arange(len(job.line.ranks)))
    window = job.window
    for kind in BLOCKING_KINDS:
        groups = [np.array(group.ranks) for group in window.job.groups
                  if group.kind == kind and len(group.ranks) > 1]  # fmt: skip
        if len(groups) > 1:
            yield _Unit(_numbers(job, [job.line.rows(ranks) for ranks in groups]))
    if len(job.host_rows) > 1 and _is_aligned(job):
        yield _Unit(_numbers(job, job.host_rows), is_host=True)


def _numbers(job: Observed, parts: list[Ints]) -> Ints:
    """A number for the part of each row; what is in none is a part by itself."""
    number = len(parts) + np.arange(len(job.line.ranks))
    for at, rows in enumerate(parts):
        number[rows[rows >= 0]] = at
    return np.unique(number, return_inverse=True)[1]


def _is_aligned(job: Observed) -> bool:
    return len(job.host_rows) < 2 or (job.has_ends and _is_known(job))


@dataclass(frozen=True)
class _Late:
    """The unit of a division for which all others wait longest."""

    rows: Ints
    """Of the timeline."""
    is_host: bool
    each: Floats
    """`[unit, judged step]`: how much longer the others wait for each than for any other unit, in
    steps."""
    at: int
    """The number of this unit."""
    lost: float
    """What it costs per step, net of what any others cause, in typical steps."""

    @property
    def beyond(self) -> Floats:
        """`each` of this unit."""
        return np.asarray(self.each[self.at])

    @property
    def columns(self) -> Ints:
        """The judged steps in which it is late by half as much as in the worst: most of it."""
        most = float(self.beyond.max(initial=0.0))
        return np.flatnonzero(self.beyond > max(HALF * most, LEAST_COST))

    @property
    def spells(self) -> int:
        """How often it is late: steps in a row are one."""
        return len(stats.runs_of(self.columns))


def _latest(job: Observed, arrivals: Arrivals, unit: _Unit) -> _Late | None:
    if unit.number.max() == 0:
        return None
    caused = _caused(job, arrivals, unit)
    mean = caused.mean(axis=1)
    at = int(mean.argmax())
    lost = float(mean[at] - np.partition(mean, -2)[-2])
    return _Late(np.flatnonzero(unit.number == at), unit.is_host, _beyond(caused), at, lost)


def _score(job: Observed, late: _Late) -> float | None:
    """How sure it is; None if it costs too little, or may be chance."""
    lasts = _lasts(job, late)
    if not lasts and not _stands_out(late):
        return None
    brief = late.beyond.size < BLOCK * LEAST_BLOCKS // 2
    rare = not lasts and late.columns.size < LEAST_STEPS  # a pause or two
    recorded = _is_known(job) and job.has_ends
    if rare and (brief or not recorded or _has_duties(job, late)):
        return None
    doubtful = rare or not (lasts or _recurs(late)) or _is_planned(job, late)
    if late.lost < (LEAST_OF_FEW if doubtful or brief else LEAST_LATE):
        return None
    return SCORE if _is_known(job) and not doubtful else SUSPECT_SCORE


def _caused(job: Observed, arrivals: Arrivals, unit: _Unit) -> Floats:
    """`[unit, judged step]`: how long the others wait for each alone, in steps."""
    skip, typical_ns = job.line.warm_up, max(job.line.typical_ns, 1.0)
    counts = (arrivals.step >= 0) & _meet_at_work(job, arrivals)
    counts &= arrivals.spread_ns > LEAST_COST * typical_ns  # others are no wait to speak of
    clock = np.zeros(len(job.line.ranks), np.int64)
    if not _is_aligned(job):
        clock = _numbers(job, job.host_rows)
    caused = arrivals.made_wait(unit.number, clock, counts, len(job.line.steps))[:, skip:]
    if not _is_known(job):
        caused = np.maximum(caused - stats.row_medians(caused)[:, None], 0.0)
    return np.asarray(caused / typical_ns)


def _beyond(caused: Floats) -> Floats:
    """By unit and step, what it causes less the most that any other one does."""
    second, most = np.partition(caused, -2, axis=0)[-2:]
    is_most = np.arange(len(caused))[:, None] == caused.argmax(axis=0)
    return np.asarray(caused - np.where(is_most, second, most))


def _lasts(job: Observed, late: _Late) -> bool:
    """Whether it is late for so long, or so often, that chance does not explain it."""
    if int((late.beyond > LEAST_COST).sum()) < LEAST_STEPS:
        return False
    return _is_long(late) or (_is_often(late) and not _is_explained(job, late))


def _is_long(late: _Late) -> bool:
    """Whether units do not differ as much for as long, by the scatter and memory of all of them."""
    blocks = stats.block_means(late.each, max(1, min(BLOCK, late.beyond.size // LEAST_BLOCKS)))
    parts = stats.worst_stretch(blocks, LEAST_COST)
    return bool(stats.is_no_chance(blocks, LEAST_COST, parts, FALSE_ALARMS)[late.at])


def _is_often(late: _Late) -> bool:
    """Whether it is too often the last of all, in steps in which one makes the others wait."""
    costly, units = (late.each > LEAST_COST).any(axis=0), len(late.each)
    times = int((late.beyond > LEAST_COST).sum())
    chance = log_tail(times, int(costly.sum()), 1 / units) + math.log(units)
    return chance <= math.log(FALSE_ALARMS)


def _is_explained(job: Observed, late: _Late) -> bool:
    """Whether their own time shows that they are late: then it also shows by how much ranks of this
    job differ anyway, and whoever is slower than that was found by it."""
    own = [np.nan_to_num(job.excess(job.total, None, int(row)))[job.line.warm_up :]
           for row in late.rows]  # fmt: skip
    return float(np.mean(own)) >= HALF * late.lost * job.line.typical_ns


def _stands_out(late: _Late) -> bool:
    """Whether most of it is in steps in which no scatter of single steps reaches as far."""
    own = np.maximum(late.beyond, 0.0)
    spikes = own > max(SPIKE_Z * stats.sigma(late.each), SPIKE_SHARE)
    return bool(own[spikes].sum() >= HALF * own.sum())


def _recurs(late: _Late) -> bool:
    """Whether so many spells of lateness are not one unit's by chance."""
    return float(len(late.each)) ** (1 - late.spells) <= FALSE_ALARMS


def _has_duties(job: Observed, late: _Late) -> bool:
    """Whether it may be the first or the last rank that evaluates or logs for all, for once."""
    once = late.rows.size == 1 and late.spells == 1
    return once and int(late.rows[0]) in (0, len(job.line.ranks) - 1)


def _may_be_held(job: Observed, rows: Ints) -> bool:
    """Whether others may hold up some of these ranks in operators that were not recorded."""
    ranks, comm = set(job.line.ranks_of(rows)), job.window.tables["comm_ops"]
    apart = unrecorded_groups(job.window)
    if not comm.strings("op").equals(*POINT_TO_POINT).any():
        apart += job.window.job.groups_of_kind("pp")
    return any(not ranks.isdisjoint(group.ranks) and not ranks.issuperset(group.ranks)
               for group in apart)  # fmt: skip


def _meet_at_work(job: Observed, arrivals: Arrivals) -> Mask:
    """Operators whose members do the same work: stages of a pipeline come one after the other."""
    if not is_staged(job.window):
        return np.ones(arrivals.step.size, np.bool_)
    apart, known = across_stages(job.window), job.window.job.stage_by_rank
    alike = [group.id for group in job.window.job.groups
             if group.id not in apart and known.keys() >= set(group.ranks)]  # fmt: skip
    return arrivals.group.equals(*alike)


def _finding(job: Observed, arrivals: Arrivals, late: _Late, score: float) -> Slowdown:
    line, skip = job.line, job.line.warm_up
    rows, in_turns = _members(job, arrivals, late)
    ranks = line.ranks_of(rows)
    together = not in_turns and _is_one_group(job, ranks)
    stretch = stats.worst_stretch(late.beyond[None], LEAST_COST)
    first, stop = (skip + int(one[0]) for one in (stretch.first, stretch.stop))
    share = min(late.lost * line.typical_ns / _mean_ns(job), 1.0)
    says = f"all others wait for {name_ranks(ranks)}, for {percent(share)} of their time"
    says += f"{line.since(first)}{', and one of these holds up the rest' if together else ''}"
    return Slowdown(
        LateAlone.name,
        "host" if in_turns or (late.is_host and len(ranks) > 1 and not together) else "unknown",
        f"in the collectives for which they wait longest, the others wait for {name_ranks(ranks)} "
        f"alone, {late.lost * line.typical_ns / 1e6:.1f} ms longer per step than for any others",
        ranks, steps=line.span(first, stop), time_ns=line.span_ns(first, stop),
        slowdown=1 / max(1 - share, 0.01), lost_fraction=share,
        lost_of=line.span(skip, len(line.steps)), score=SUSPECT_SCORE if together else score,
        says=says, values={"late": late.lost},
    )  # fmt: skip


def _mean_ns(job: Observed) -> float:
    """How long a judged step takes on average: where most are short, more than the typical one."""
    period = job.line.job_period_ns[job.line.warm_up :]
    known = period[np.isfinite(period)]
    return max(float(known.mean()) if known.size else 0.0, job.line.typical_ns, 1.0)


def _members(job: Observed, arrivals: Arrivals, late: _Late) -> tuple[Ints, bool]:
    """The one of these ranks for which the others of them wait in their own operators, by most of
    what it costs; else all of them, and whether each of a host is waited for there in turns."""
    ranks, skip = set(job.line.ranks_of(late.rows)), job.line.warm_up
    groups = [group.id for group in job.window.job.groups if ranks.issuperset(group.ranks)]
    caused = _caused_ns(job, arrivals, groups)
    following, most = np.partition(caused, -2)[-2:]
    lost_ns = late.lost * job.line.typical_ns * (len(job.line.steps) - skip)
    if most - following >= HALF * lost_ns:
        return np.array([caused.argmax()]), False
    groups = [group.id for group in job.window.job.groups_of_kind(*BLOCKING_KINDS)]
    own_ns = caused[late.rows] - stats.median(_caused_ns(job, arrivals, groups))
    shared = own_ns.sum() >= HALF * lost_ns and stats.median(own_ns) >= HALF * own_ns.mean()
    return late.rows, shared and any(set(late.rows) == set(rows) for rows in job.host_rows)


def _caused_ns(job: Observed, arrivals: Arrivals, groups: list[str]) -> Floats:
    """By row, how long others wait for it alone in the operators of these groups."""
    own = (arrivals.step >= job.line.warm_up) & arrivals.group.equals(*groups)
    return stats.sums(arrivals.last_rank[own], arrivals.alone_ns[own], len(job.line.ranks))


def _is_planned(job: Observed, late: _Late) -> bool:
    """Whether they are late in steps on a schedule: they may save or evaluate for all, which nobody
    plans to do every few steps."""
    steps, at = job.line.steps[job.line.warm_up :], late.columns
    rare = 0 < at.size * LEAST_DISTANCE <= steps.size and late.spells - 1 <= RARE * steps.size
    return rare and float(scheduled(steps[at], steps).mean()) >= HALF


def _is_one_group(job: Observed, ranks: tuple[int, ...]) -> bool:
    """Whether ranks work on the same layers: one slow device holds up all of them."""
    groups = job.window.job.groups_of_kind(*BLOCKING_KINDS)
    return len(ranks) > 1 and any(set(ranks) <= set(group.ranks) for group in groups)
