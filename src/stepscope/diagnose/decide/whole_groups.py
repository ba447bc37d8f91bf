"""Groups all of whose members are slow alike, where a pass may hold their communication.

Members of a group leave a collective together. With sharded parameters a forward pass gathers them
layer by layer, so that one late member, or a slow way between members, makes the pass of all of
them longer by the same, step by step. Where nobody marked that waiting it looks like their own
work, and one group seems to be several slow hosts.
Ours: suspects that are exactly the recorded members of one listed group, slow in the same pass at
the same time, are one finding about the group if that pass varies from step to step for all of them
alike: members are closer to each other in each step than steps are. Devices that are slow each by
itself scatter each by itself. Between passes that may contain waiting, members of groups that meet
within these wait as well, whatever was marked: that time ends for all with their next meeting. Its
cause is unknown: the network between them, or one of them.
Cost: one look at the own times of the members. Cannot see: groups whose members wait for others in
the same pass as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepscope.diagnose.decide.join import alike_by_cause, as_one
from stepscope.diagnose.finding import Evidence, Slowdown
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.views.hidden_waits import WITHIN_PASSES
from stepscope.diagnose.views.phase_rows import phase_rows
from stepscope.diagnose.views.unnamed import GAPS, is_staged
from stepscope.trace import ProcessGroup
from stepscope.window import Floats

LEVEL = 0.5
"""Members differ in a step by less than this part of what their median differs by from step to
step: halfway between all and nothing. Of members that scatter each by itself it is more than the
root of their number."""
LEAST = 3
"""Members: two may be slow alike by chance. Our choice."""
UNSURE = 0.6
"""Highest score of a group of which nobody knows what is slow. Our choice, as `join.INFERRED`."""


def as_groups(job: Observed, found: Sequence[Slowdown]) -> list[Slowdown]:
    """The findings, those on members of one group that are slow as one replaced by one finding."""
    left = [*found]
    slow, recorded = {rank for one in found for rank in one.ranks}, frozenset(job.window.ranks)
    theirs = [group for group in job.window.job.groups if not slow.isdisjoint(group.ranks)]
    for group in sorted(theirs, key=lambda one: len(one.ranks)):
        ranks = recorded.intersection(group.ranks)
        if not LEAST <= len(ranks) < len(job.line.ranks):
            continue
        for part in alike_by_cause([one for one in left if ranks.issuperset(one.ranks)]):
            if ranks.issubset(rank for one in part for rank in one.ranks) and (
                    _is_one(job, group, part)):  # fmt: skip
                left = [*(one for one in left if one not in part), _of_group(group, part)]
    return left


def _is_one(job: Observed, group: ProcessGroup, part: Sequence[Slowdown]) -> bool:
    """Whether the members take equally long in one pass, or between passes, and nothing measured
    says why."""
    suspects = [one.suspect for one in part if one.suspect is not None]
    phases = {one.suspect.phase if one.suspect and not one.phase else one.phase for one in part}
    phase = phases.pop()
    if phases or len(suspects) < len(part) or any(one.supporting for one in part):
        return False
    if phase not in job.own.phases or not _may_wait(job, group, phase):
        return False
    members = job.line.rows(np.array([rank for one in part for rank in one.ranks], np.int64))
    own = job.own.of(phase)[members][:, suspects[0].columns]
    return _vary_together(own)


def _may_wait(job: Observed, group: ProcessGroup, phase: str | None) -> bool:
    """Whether members may wait for each other there, which nobody measured."""
    if phase == GAPS:
        return group.kind in WITHIN_PASSES and job.own.hidden and not is_staged(job.window)
    rows = None if job.own.marked else phase_rows(job.window, job.line)
    return rows is not None and phase in rows.passes


def _vary_together(own: Floats) -> bool:
    """Whether ranks differ from step to step alike, `[rank, step]`."""
    usual = stats.column_median(own)
    apart = stats.median(np.abs(own - usual).mean(axis=0))
    return apart < LEVEL * float(np.abs(usual - stats.median(usual)).mean())


def _of_group(group: ProcessGroup, part: Sequence[Slowdown]) -> Slowdown:
    one = as_one(part)
    where = f"in {one.phase}" if one.phase else "between phases"
    detail = (f"all members of {group.id} take equally long {where}, step by step: they wait"
              " for each other there, for one of them or for the network")  # fmt: skip
    evidence = Evidence("whole-group", detail, {"ranks": [int(rank) for rank in one.ranks]})
    return replace(
        one, cause="unknown", group=group.id, score=min(one.score, UNSURE),
        supporting=(evidence, *one.supporting),
        says=f"the ranks of {group.id} take longer than those of other groups {where}, all "
             "by the same: one of them or the network between them is slow",
    )  # fmt: skip
