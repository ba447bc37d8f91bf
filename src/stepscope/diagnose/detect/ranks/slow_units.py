"""Tensor parallel groups that take longer than equal ones, where passes hide who waits for whom.

Fault: a slow rank of a group that works on each layer together (tensor, context or expert
parallel), or slow NVLink between its ranks, in a job that marks passes as containing waiting and
records no operators.
Paper: none. Ours: the members of such a group wait only for each other within the pass of one
microbatch, because its input was there when it began. So the pass, of the member that takes the
least of it, is own time of the group as a whole, and equal groups of other replicas show what it
needs. Which member is slow shows where nobody waits, as in the optimizer: a slow device is slow in
everything. Else all members are a suspect together.
A pass of a whole step may also contain waiting for other stages or replicas: it counts only if
receiving from other stages has phases of its own, or if all groups wait for the same ranks, because
the passes of those that wait are then equally long.
Of a group that was recorded in part, what a member computes and its time in the collectives of the
group are own time of the group, in which a member that nobody recorded may be slow.
Cost: as `straggler`, with one row for each group. Cannot see: passes of whole steps in pipelines
that contain receiving, and where only some replicas wait for each other; all groups of a stage.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from stepscope.diagnose.account.absent import together_ns, unrecorded_ranks
from stepscope.diagnose.account.model import Model
from stepscope.diagnose.account.work import hidden_passes
from stepscope.diagnose.detect.ranks.odd_gauges import held_down
from stepscope.diagnose.detect.ranks.slowdown import OWN_TIME
from stepscope.diagnose.detect.ranks.straggler import Straggler
from stepscope.diagnose.detect.ranks.straggler_ranks import is_brief, look_of, onset
from stepscope.diagnose.finding import Decision, Slowdown
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import FAST, SUSPECT_SCORE, score
from stepscope.diagnose.views.hidden_waits import receives_apart
from stepscope.diagnose.views.inferred import LEAST_LATE, mirrors
from stepscope.diagnose.views.peers import disjoint
from stepscope.diagnose.views.phase_rows import PhaseRows, phase_rows
from stepscope.diagnose.views.unnamed import UNNAMED, is_staged
from stepscope.diagnose.words.advice import name_ranks
from stepscope.trace import DATA_LOAD, ProcessGroup
from stepscope.window import Floats, Ints

UNITS = ("tp", "cp", "mp", "ep")
"""Groups that work on each layer together. Experts of one group exchange its members' samples, of
which equal groups have as many."""
LEAST_PEERS = 3
"""Comparisons of equal groups, all stages together: of two groups alone, either may be the unusual
one, but pairs of other stages show how far equal groups differ. Statistics."""
AS_SLOW = 0.5
"""Of the group's excess, as a share: a member with this in what it does alone is the slow one, and
one with less than half of that is not. Our choice."""
LEAST_BEFORE = 8
"""Steps before it that show how long steps are without it, as `cost.LEAST_EITHER`. Statistics."""


class SlowUnits:
    """Groups that take longer in passes with hidden waiting, and their slow member if it shows."""

    name = "slow-units"
    needs = Needs("phases", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        whole, parts = _units(job)
        for units, own in ((whole, _in_passes(job, whole)), (parts, _with_collectives(job, parts))):
            if own is None:
                continue
            peers = _peers(job, units)
            for one in _alone_of_pairs(_slow(job, own, peers), peers):
                if so_far.blamed.isdisjoint(job.line.ranks[units[one.row]].tolist()):
                    yield _finding(job, units, own, peers, one)


def _slow(job: Observed, own: Floats, peers: list[Ints]) -> Iterator[Straggler]:
    """The groups that take longer than equal ones."""
    skip = job.line.warm_up
    for one in look_of(job)(own[:, skip:], peers, job.line.typical_ns, None, len(own)):
        yield replace(one, first=one.first + skip, stop=one.stop + skip)


def _alone_of_pairs(found: Iterator[Straggler], peers: Sequence[Ints]) -> Iterator[Straggler]:
    """Without groups that have one equal, if several of these are slow: then it is the work of a
    replica that differs, and not a device."""
    each = list(found)
    pairs = {int(at) for group in peers if group.size == 2 for at in group}
    several = sum(one.row in pairs for one in each) > 1
    yield from (one for one in each if not (several and one.row in pairs))


def _units(job: Observed) -> tuple[list[Ints], list[Ints]]:
    """The rows of each group that works on the same layers: of those whose members were all
    recorded, and of others."""
    groups = [group.ranks for group in job.window.job.groups_of_kind(*UNITS)]
    rows = [job.line.rows(np.array(ranks, np.int64)) for ranks in groups]
    whole = [known.tolist() for known in rows if (known >= 0).all()]
    parts = [known[known >= 0] for known in rows if (known < 0).any() and (known >= 0).any()]
    apart = np.unique(np.concatenate([*parts, np.zeros(0, np.int64)])).size == sum(map(len, parts))
    return disjoint(whole), parts if apart else []


def _with_collectives(job: Observed, units: Sequence[Ints]) -> Floats | None:
    """What each group needs, `[group, step]`, by the recorded member that takes the least: what it
    computes, and its time in their collectives; None if nobody knows that."""
    absent = unrecorded_ranks(job)
    groups = [one for one in job.window.job.groups_of_kind(*UNITS) if absent & set(one.ranks)]
    together = together_ns(job, groups) if units and job.own.phases else None
    if together is None:
        return None
    return np.stack([(job.total + together)[members].min(axis=0) for members in units])


def _peers(job: Observed, units: Sequence[Ints]) -> list[Ints]:
    """The groups of each stage, as numbers of groups; where there are enough of all stages."""
    stage = Model.of(job).stage
    at = np.array([stage[rows[0]] for rows in units], np.int64)
    equal = [np.flatnonzero(at == one) for one in np.unique(at)]
    compared = [group for group in equal if group.size > 1]
    return compared if sum(group.size - 1 for group in compared) >= LEAST_PEERS else []


def _in_passes(job: Observed, units: Sequence[Ints]) -> Floats | None:
    """How long each group takes in hidden passes of one microbatch, `[group, step]`; None if there
    are none."""
    rows = phase_rows(job.window, job.line) if job.own.hidden and units else None
    if rows is None:
        return None
    if not (rows.passes or receives_apart(rows)) and units and _meet_as_one(job, units):
        return _before_meeting(job, rows, units)
    spent = hidden_passes(job, _meet_as_one(job, units))
    return None if spent is None else np.stack([spent[members].min(axis=0) for members in units])


def _before_meeting(job: Observed, rows: PhaseRows, units: Sequence[Ints]) -> Floats | None:
    """The same in phases whose names say nothing: those before the one in which groups give back
    what they were late by, because there they wait for each other."""
    late, spent = np.zeros((len(units), len(job.line.steps))), None
    for name in _in_order(rows, job.own.hidden_phases):
        lasted = rows.grids(rows.duration, [name])[0]
        least = np.stack([lasted[members].min(axis=0) for members in units])
        apart = np.nan_to_num(least - stats.column_median(least))
        if mirrors(apart, late, LEAST_LATE * job.line.typical_ns):
            break
        late, spent = late + apart, least if spent is None else spent + least
    return spent


def _in_order(rows: PhaseRows, names: Collection[str]) -> list[str]:
    """Phases by where in a step they begin."""
    since = rows.begin - rows.axis.at(rows.rank, rows.line.start_ns[rows.rank, rows.column])
    return sorted(names, key=lambda name: float(np.median(since[rows.names.equals(name)])))


def _meet_as_one(job: Observed, units: Sequence[Ints]) -> bool:
    """Whether there are no stages, and whatever connects some groups connects all.

    Within a pass all groups then wait for the same one, which has the shortest pass: none takes
    longer than the others by waiting.
    """
    of = {int(job.line.ranks[row]): at for at, rows in enumerate(units) for row in rows.tolist()}
    met = [{of.get(rank, -1) for rank in group.ranks} for group in job.window.job.groups]
    return not is_staged(job.window) and all(len(one) in (1, len(units)) for one in met)


def _finding(
    job: Observed, units: Sequence[Ints], own: Floats, peers: Sequence[Ints], one: Straggler
) -> Slowdown:
    """The slow member of a group, or all of its members as a suspect."""
    others = next(group[group != one.row] for group in peers if one.row in group)
    usual = stats.column_median(own[others])
    excess = own[one.row] - usual
    first = one.first if is_brief(job) else onset(excess, one, job.line.warm_up)
    part = slice(first, one.stop)
    slowdown = stats.median(own[one.row, part]) / max(stats.median(usual[part]), 1.0)
    member, because = _slow_member(job, units[one.row], part, slowdown)
    group = _group(job, units[one.row])
    ranks = tuple(sorted(group.ranks)) if member is None else (int(job.line.ranks[member]),)
    may_be_data = member is None and group.kind == "ep"
    is_host = member is None and any(set(ranks) == {*host.ranks} for host in job.window.job.hosts)
    lost = _lost_fraction(job, units, own, one.row, usual, part)
    detail = (
        f"their passes take {excess[part].mean() / 1e6:.1f} ms per step more than those of equal "
        f"groups (z {one.z:.1f}, noise reaches {one.needed:.1f}); "
    )
    detail += f"{because}{_recorded(job, ranks)}"
    says = "" if member is not None else (
        f"{name_ranks(ranks)}, which wait for each other in their passes, take {slowdown:.1f}x as "
        f"long as equal groups from step {int(job.line.steps[first])}: one of them"
        f"{', or what moves data between them,' if may_be_data else ''} is slow"
    )  # fmt: skip
    return Slowdown(
        SlowUnits.name, "unknown" if may_be_data else "compute", detail, ranks,
        group=group.id if is_host else None, steps=job.line.span(first, one.stop),
        time_ns=job.line.span_ns(first, one.stop), slowdown=slowdown,
        lost_ns=lost * job.line.typical_ns, lost_fraction=lost, says=says,
        score=SUSPECT_SCORE if member is None else score(one.z - one.needed),
        values={"effect": one.effect, "z": one.z, "z_needed": one.needed, "lost_fraction": lost},
        columns=frozenset(range(first, one.stop)), has_onset=first > job.line.warm_up,
        decisions=(Decision(OWN_TIME, True, one.z, one.needed, detail),),
    )  # fmt: skip


def _group(job: Observed, rows: Ints) -> ProcessGroup:
    known = frozenset(job.line.ranks_of(rows))
    groups = job.window.job.groups_of_kind(*UNITS)
    return next(one for one in groups if known <= frozenset(one.ranks))


def _recorded(job: Observed, ranks: Sequence[int]) -> str:
    """Which of them were recorded, if some were not."""
    known = tuple(rank for rank in ranks if rank not in unrecorded_ranks(job))
    if len(known) == len(ranks):
        return ""
    return f", and only {name_ranks(known)} of them {'was' if len(known) == 1 else 'were'} recorded"


def _slow_member(
    job: Observed, members: Ints, part: slice, slowdown: float
) -> tuple[int | None, str]:
    """The one member whose device is held down, or that is about as slow as the group in what it
    does alone, and why it is this one."""
    unknown = None, "which member is slow is not known"
    held = members[held_down(job, part.start, part.stop)[members]]
    if held.size == 1 and len(members) > 1:
        return int(held[0]), "of the group, this rank's device alone is held down by heat or power"
    alone = [at for at, phase in enumerate(job.own.phases) if phase not in (*UNNAMED, DATA_LOAD)]
    if not alone or len(members) < 2:
        return unknown
    own = job.own.own[alone].sum(axis=0)
    slower = [stats.median(own[row, part]) / max(_usual(job, own, row, part), 1.0) - 1
              for row in members]  # fmt: skip
    order = np.argsort(slower)
    second, most = (slower[int(at)] for at in order[-2:])
    if not most >= AS_SLOW * (slowdown - 1) > 2 * second:
        return unknown
    return int(members[order[-1]]), (
        "of the group, this rank alone is slow where nobody waits as well")  # fmt: skip


def _usual(job: Observed, own: Floats, row: int, part: slice) -> float:
    return stats.median(stats.column_median(own[job.peers_of(row, None)])[part])


def _lost_fraction(
    job: Observed, units: Sequence[Ints], own: Floats, unit: int, usual: Floats, part: slice
) -> float:
    """How much shorter these steps would be with the group as fast as its peers."""
    model, work = Model.of(job), np.full(job.total.shape, np.nan)
    for at, rows in enumerate(units):
        work[rows] = own[at]
    healed = work.copy()
    healed[units[unit]] = np.minimum(own[unit], usual)
    gain = float((model.step_ns(work) - model.step_ns(healed))[part].mean())
    period = job.line.job_period_ns
    lost = min(max(gain, 0.0), _rise(period, part, job.line.warm_up)) * (part.stop - part.start)
    whole = float(np.nansum(period[part]))
    return min(lost / whole, 1.0) if whole > 0 and math.isfinite(lost) else 0.0


def _rise(period: Floats, part: slice, warm_up: int) -> float:
    """How much longer steps are than the fast ones before, as no model may say more; without
    enough steps before, no limit."""
    before = period[warm_up : part.start]
    if before.size < LEAST_BEFORE:
        return math.inf
    return max(float(np.nanmean(period[part]) - np.nanquantile(before, FAST)), 0.0)
