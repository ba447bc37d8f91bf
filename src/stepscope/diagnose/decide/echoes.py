"""Ranks that may only echo another culprit (blame rule 3), where waiting was not marked.

What holds up its neighbours comes back as a part of its own excess, in the same steps. Of two with
about the same excess either may be the echo. A rank is no echo if its excess lies outside of all
operators, or in pauses that were recorded: there nobody waits for others. Cost: one
union of the operators of a culprit and a few of its peers. Cannot see: waiting in operators that
were not recorded; then no rank is cleared.

Where waiting was marked, but operators within passes were not recorded, a rank whose much smaller
excess begins with another culprit's, and shows nothing else, may be late for that one.

A rank that meets a culprit of several times its excess within passes is its victim, where own time
is what lies between operators, or where neither its device nor its host takes longer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.diagnose.decide import rules
from stepscope.diagnose.decide.join import SWALLOWED
from stepscope.diagnose.decide.rules import EXPLAINED_BACKWARDS, suspected
from stepscope.diagnose.finding import Decision, Slowdown, may_overlap
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.operators.unrecorded import unrecorded_groups
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.views.hidden_waits import WITHIN_PASSES
from stepscope.diagnose.views.phase_rows import phase_rows
from stepscope.diagnose.views.some_steps import of_ranks
from stepscope.diagnose.views.unnamed import BETWEEN, UNNAMED, all_waits_recorded, waiting
from stepscope.window import Ints

ECHO = 0.5
"""Less than half of another culprit's excess may be its echo, and makes no more than a suspect. Nor
is it cleared by less than the other half outside of operators. Our simulator."""
SOON = 5
"""Steps within which a rank begins with another one; as many were free of both before. Of 50 steps
an independent fault begins so soon after in one job in ten. Our choice."""
OF_ANY_RANK = ("processor-use", "elimination")
"""Evidence that says what was not seen to be the cause."""
UNMARKED = "times this excess has another culprit in the same steps; waiting was not marked"
BEGAN_WITH = ("times this excess has a culprit that became slow just before; nothing else shows "
              "that this rank is slow")  # fmt: skip
FEW_PEERS = 8
"""The nearest peers whose time outside of operators a rank's is compared with. Our choice."""


def without_echoes(job: Observed, found: Sequence[Slowdown]) -> list[Slowdown]:
    """The same findings; ranks that may only echo another culprit are suspects."""
    if len(found) < 2:
        return list(found)
    if job.own.marked:
        within = {rank for group in unrecorded_groups(job.window) for rank in group.ranks}
        return [_echo(one, beside, BEGAN_WITH)
                if not within.isdisjoint(one.ranks) and (beside := _begins_with(job, one, found))
                else one for one in found]  # fmt: skip
    inferred = bool(job.own.inferred)
    return [_echo(one, beside, UNMARKED) if (beside := _stronger(one, found, inferred))
            and not _is_pause(one) and not _outside_operators(job, one.suspect) else one
            for one in found]  # fmt: skip


def _is_pause(one: Slowdown) -> bool:
    """Whether only pauses make a rank a suspect: these were measured, and nobody waits in them."""
    return one.suspect is not None and not one.suspect.phases


def _stronger(one: Slowdown, found: Sequence[Slowdown], inferred: bool) -> Slowdown | None:
    """The finding that this one may echo; where waiting was inferred, a much larger one."""
    least = one.lost_ns * (1 / ECHO if inferred else ECHO)
    others = [other for other in found if other is not one and other.lost_ns > least
              and may_overlap(one.steps, other.steps)]  # fmt: skip
    return max(others, key=lambda other: other.lost_ns, default=None)


def _begins_with(job: Observed, one: Slowdown, found: Sequence[Slowdown]) -> Slowdown | None:
    """The culprit of several times its excess with which this one began, where operators within
    passes were not recorded: who waits in these for a rank that waits for the culprit is not
    marked as waiting. Whoever shows why it is slow is no echo."""
    if one.steps is None or _shows_why(one):
        return None
    beside = [
        other
        for other in found
        if other.lost_ns >= SWALLOWED * one.lost_ns
        and other.steps is not None
        and _is_later(job, other.steps[0])
        and 0 <= one.steps[0] - other.steps[0] <= SOON
        and one.steps[1] <= other.steps[1]
    ]
    return max(beside, key=lambda other: other.lost_ns, default=None)


def _is_later(job: Observed, step: int) -> bool:
    """Whether the job was without it before."""
    return step >= int(job.line.steps[min(job.line.warm_up + SOON, len(job.line.steps) - 1)])


def _shows_why(one: Slowdown) -> bool:
    """Whether something else than its own time was measured there."""
    return any(each.method not in OF_ANY_RANK for each in one.supporting)


def _echo(one: Slowdown, beside: Slowdown, says: str) -> Slowdown:
    decision = Decision(
        EXPLAINED_BACKWARDS.name, False, beside.lost_ns / max(one.lost_ns, 1.0), 1 / ECHO, says,
        gate=False,
    )  # fmt: skip
    return suspected(one, decision)


def _outside_operators(job: Observed, suspect: Suspect | None) -> bool:
    """Whether most of a rank's excess lies where none of its operators was in progress."""
    comm = job.window.table("comm_ops")
    if suspect is None or comm is None or not all_waits_recorded(job.window, comm):
        return False
    if unrecorded_groups(job.window):
        return False
    peers = job.nearest_peers(suspect.row, suspect.phase, FEW_PEERS)
    outside_ns = sum(_excess(job, phase, suspect) for phase in suspect.phases if phase in UNNAMED)
    named = [phase for phase in suspect.phases if phase not in UNNAMED]
    if named and peers.size:
        outside_ns += _excess_in(job, named, suspect, peers)
    return outside_ns >= (1 - ECHO) * suspect.excess_ns


def _excess(job: Observed, phase: str, suspect: Suspect) -> float:
    """The mean excess per step in time that is in no phase, where operators do not count."""
    return float(np.nan_to_num(job.excess_of(phase, suspect.row)[suspect.columns]).mean())


def _excess_in(job: Observed, phases: list[str], suspect: Suspect, peers: Ints) -> float:
    """How much longer than its peers the rank is in these phases, but in no operator, per step."""
    members = job.line.ranks[np.append(peers, suspect.row)]
    part = of_ranks(job.window, members, ("phases", "comm_ops"))
    rows = phase_rows(part, job.line)
    busy = None if rows is None else waiting(part, rows)
    if rows is None or busy is None:
        return 0.0
    spent = (rows.duration - busy.within(rows.begin, rows.end)).astype(np.float64)
    spent_in = rows.grids(spent, phases)[:, :, suspect.columns]
    excess = [one[suspect.row] - stats.column_median(one[peers]) for one in spent_in]
    return float(np.nan_to_num(excess).sum(axis=0).mean())


def without_victims(
    job: Observed, found: Sequence[Slowdown]
) -> tuple[list[Slowdown], list[Slowdown]]:
    """The findings to keep, and those that a culprit within passes explains."""
    kept, explained = list[Slowdown](), list[Slowdown]()
    for one in found:
        by = _in_its_passes(job, one, found)
        if by is None:
            kept.append(one)
        else:
            explained.append(rules.victim(one, by.method))
    return kept, explained


def _in_its_passes(job: Observed, one: Slowdown, found: Sequence[Slowdown]) -> Slowdown | None:
    """The culprit of several times its excess that a rank meets within passes, where own time is
    what lies between operators, or where neither its device nor its host takes longer."""
    if BETWEEN not in job.own.phases and one.cause != "unknown":
        return None
    groups = [frozenset(each.ranks) for each in job.window.job.groups_of_kind(*WITHIN_PASSES)]
    beside = [other for other in found if other.lost_ns >= SWALLOWED * one.lost_ns
              and may_overlap(one.steps, other.steps)
              and any(each.issuperset((*one.ranks, *other.ranks)) for each in groups)]  # fmt: skip
    return max(beside, key=lambda other: other.lost_ns, default=None)
