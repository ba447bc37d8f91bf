"""What is expected of ranks with experts: how much they differ, and who holds the same ones.

A router gives experts unequal parts of the tokens, and what an expert gets drifts slowly: for a
hundred steps one rank has a third more work than its peers, and no hardware is slow. Noise from
step to step does not show that, because it stays with a rank.
Ours: in the steps in question each rank has one level, its time against the median of its peers. A
rank stands out if its level exceeds what levels of healthy ranks reach by chance (standard
deviation of the other ranks, Student's quantile, Bonferroni over the ranks). Suspects that are
slower still are not among these. A rank that is slow in work without experts as well is not
excused, and neither are ranks that would need more than all tokens of their group: several that are
equally slow would excuse each other.
Cost: one median for each rank and suspect. Cannot see: experts with more tokens than usual but no
more than others get now and then.

Ranks hold the same experts if they have the same place in their expert groups, in one stage. If
routing prefers an expert, every rank that holds it is slow, in every step, for one cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepscope.diagnose.explain.tokens import exceeds, is_slow_device
from stepscope.diagnose.finding import Evidence, Slowdown
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.peers import above_peers
from stepscope.diagnose.observed import SHARE, SLICE_NS, Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.views.peers import is_expert
from stepscope.diagnose.views.unnamed import BETWEEN, KERNELS
from stepscope.trace import BACKWARD, FORWARD
from stepscope.window import Floats, Window

FALSE_ALARMS = 0.05
"""Share of healthy jobs in which the level of some rank may stand out; that it differs from step to
step is tested by itself, far more strictly. Statistics."""
LEAST_OTHERS = 3
"""With fewer other ranks nobody knows how much experts differ. Statistics."""
HOLD_EXPERTS = (BETWEEN, KERNELS, FORWARD, BACKWARD)
"""Parts of a step that hold the work of experts among other work."""


def excused(job: Observed, suspects: Sequence[Suspect]) -> list[Suspect]:
    """The suspects, and whether ranks with experts differ by as much without a fault."""
    if not job.has_experts:
        return [*suspects]
    return [replace(one, ordinary=_is_ordinary(job, one, suspects)) for one in suspects]


def _is_ordinary(job: Observed, one: Suspect, suspects: Sequence[Suspect]) -> bool:
    if not _held(one) or (one.phase and not _holds_experts(one.phase)) or is_slow_device(job, one):
        return False
    levels, rows = _levels(job, one), [other.row for other in suspects]
    if exceeds(job, one.row, np.exp(levels), 1.0):
        return False  # routing moves tokens within a group, and creates none
    ranks = np.arange(levels.size)
    slower = np.isin(ranks, rows) & (levels >= levels[one.row])
    others = levels[np.isfinite(levels) & ~slower & (ranks != one.row)]
    if others.size < LEAST_OTHERS or not np.isfinite(levels[one.row]):
        return False
    limit = stats.threshold(FALSE_ALARMS, levels.size, others.size)
    return bool(levels[one.row] < limit * others.std(ddof=1))


def _held(one: Suspect) -> list[str]:
    """The phases with experts in which it is slow."""
    return [each for each in one.phases if _holds_experts(each)]


def _holds_experts(phase: str) -> bool:
    return is_expert(phase) or phase in HOLD_EXPERTS


def _levels(job: Observed, one: Suspect) -> Floats:
    """By rank, how many times as long as its peers it typically takes in the suspect's phases with
    experts, in its steps, as a logarithm."""
    parts = [job.own.of(each)[:, one.columns] for each in _held(one)]
    pad = max(SHARE * job.line.typical_ns, SLICE_NS)
    logs = stats.row_medians(np.log(np.sum(parts, axis=0) + pad))
    return np.asarray(above_peers(logs[:, None], job.groups(one.phase))[:, 0])


def holders(window: Window) -> list[frozenset[int]]:
    """The ranks that hold the same experts, where there are several."""
    places: dict[tuple[int, int], set[int]] = {}
    stage = window.job.stage_by_rank
    for group in window.job.groups_of_kind("ep"):
        for at, rank in enumerate(group.ranks) if len(group.ranks) > 1 else ():
            places.setdefault((at, stage.get(rank, 0)), set()).add(rank)
    return [frozenset(ranks) for ranks in places.values() if len(ranks) > 1]


def same_experts(window: Window, one: Slowdown) -> tuple[Evidence, ...]:
    """That the ranks hold the same experts, if they have the same place in their groups."""
    groups = window.job.groups_of_kind("ep") if is_expert(one.phase) else ()
    places = {group.ranks.index(rank) for group in groups for rank in one.ranks
              if rank in group.ranks}  # fmt: skip
    if len(places) != 1:
        return ()
    (place,) = places
    detail = (
        f"all of them are at place {place} of their expert groups: the same experts take longer in "
        "every step, and not those of a different rank each time"
    )
    return (Evidence("same-experts", detail, {"place": place}),)
