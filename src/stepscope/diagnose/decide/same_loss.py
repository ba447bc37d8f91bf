"""Findings of several methods about the same loss of all ranks: one verdict, with what each knows.

Phases and steps show how much is lost and since when; stacks and profiled steps show the function.

A link may be found twice, too: by the network's own data which device, by patterns which ranks. A
slow NVLink of a host is found by what its ring moves, which does not show whose it is. Patterns
of the same steps do: that rank sends through PCIe. One fault keeps one finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from stepscope.diagnose.decide import rules
from stepscope.diagnose.decide.waits_known import hides_waits
from stepscope.diagnose.detect.steps.step_time import BLOCK
from stepscope.diagnose.finding import (
    Cause,
    Finding,
    Recurring,
    Regression,
    Slowdown,
    SlowLink,
    Waste,
)
from stepscope.diagnose.network.delay import EXPLAINS
from stepscope.diagnose.network.devices import host_in
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import HALF, LEAST_SCORE
from stepscope.diagnose.views.unnamed import UNNAMED
from stepscope.diagnose.words.summary import short_frame
from stepscope.window import Window

LEAST_TURNS = 5
"""By chance five turns of one rank are all longer than the median in one of 32. Statistics."""
LONGER = 2.0
"""Times as long as the others' turns: the others would be half of what is lost in them. As
`echoes`. Our choice."""
SLOWED: tuple[Cause, ...] = ("host", "code", "compute", "unknown")
"""What waiting for the GIL looks like to methods that do not know of it."""


def is_same(job: Observed, one: Waste, other: Finding) -> bool:
    """Whether another finding is about the same loss: its cause, or a rise of unknown function."""
    if other is one or other.method == one.method:
        return False
    if other.ranks != one.ranks and len(job.line.ranks) > 1:
        return False
    inferred = isinstance(other, Regression) and not other.measured and other.function is None
    return other.cause == one.cause or (inferred and one.function is not None)


def has_victim(job: Observed, one: Waste, other: Finding) -> bool:
    """Whether another finding is an effect of this one."""
    return _has_its_turn(job, one, other) or _waits_for_gil(one, other)


def names_nothing(one: Finding) -> bool:
    """Whether it says only that time is lost, and neither where nor why."""
    return one.cause == "unknown" and not one.ranks and one.group is None


def is_part_of(rise: Regression, one: Waste) -> bool:
    """Whether a rise is less than half of what the job loses for the same cause all the time."""
    return one.steps is not None and _whole(rise) < HALF * _whole(one)


def begin_together(one: Waste, other: Finding) -> bool:
    """Whether something that slows down the whole job began in the same step: who waits, and for
    whom, changes with it."""
    return isinstance(other, (SlowLink, Regression)) and _begin_within(1, one, other)


def _begin_within(steps: int, one: Finding, other: Finding) -> bool:
    """Whether both begin in the same step, or this many apart at most."""
    if one.steps is None or other.steps is None:
        return False
    return abs(one.steps[0] - other.steps[0]) <= steps


def victims_beside(
    job: Observed, links: Sequence[SlowLink], blamed: Sequence[Finding]
) -> list[tuple[Finding, Finding]]:
    """Ranks that are only behind a slow link, links that are only busier with what a rank computes
    longer on; each with what explains it."""
    pairs = [(link, one) for link in links for one in blamed]
    behind = [(one, link) for link, one in pairs
              if is_behind(link, one) or waits_since(job, link, one)]  # fmt: skip
    return [*behind, *((link, one) for link, one in pairs if is_of_more_work(job, link, one))]


def is_behind(link: SlowLink, other: Finding) -> bool:
    """Whether another finding is only time that ranks behind a slow link spend in no phase: they
    may wait for data there. One that costs half as much, or was slow at another time, has a reason
    of its own."""
    phase = other.suspect.phase if isinstance(other, Slowdown) and other.suspect else None
    behind = bool(other.ranks) and {*other.ranks} <= {*link.ranks} and is_within(other, link)
    return phase in UNNAMED and behind and _whole(other) < EXPLAINS * _whole(link)


def is_within(one: Finding, other: Finding) -> bool:
    """Whether most steps of a finding are steps of another one, as far as both are known."""
    if one.steps is None or other.steps is None:
        return True
    both = min(one.steps[1], other.steps[1]) + 1 - max(one.steps[0], other.steps[0])
    return both > HALF * (one.steps[1] + 1 - one.steps[0])


def waits_since(job: Observed, link: SlowLink, other: Finding) -> bool:
    """Whether ranks seem slow since the step in which data began to move slower, where nobody knows
    which phases contain waiting: who waits longest in which of them changes then. That two faults
    begin at once by chance happens in one job of as many as there are steps. Where ranks have only
    their own past to be compared with, and operators alone were recorded, this costs anything."""
    if not isinstance(other, Slowdown) or not other.has_onset or other.cause == "data_loading":
        return False
    if other.suspect and other.suspect.by_past and job.window.table("phases") is None:
        return _begins_with(job, link, other)
    less = _whole(other) < EXPLAINS * _whole(link)
    return less and hides_waits(job) and _begins_with(job, link, other)


def _begins_with(job: Observed, one: Finding, other: Finding) -> bool:
    if one.steps is None or other.steps is None:
        return False
    first, second = job.line.columns(np.array([one.steps[0], other.steps[0]])).tolist()
    return bool(abs(first - second) <= 1)


def says_more(found: Sequence[Finding], one: Finding) -> bool:
    """Whether others say more than a finding without a cause: a suspicion does not replace what is
    sure."""
    surest = max((other.score for other in found), default=0.0)
    return one.cause == "unknown" and bool(found) and (
        one.score < LEAST_SCORE or surest >= LEAST_SCORE
    )  # fmt: skip


def is_of_more_work(job: Observed, link: SlowLink, other: Finding) -> bool:
    """Whether a group's slower exchange is the larger share that one of its members has to compute:
    who gets more tokens also receives more. One that costs as much has a reason of its own."""
    group = job.window.job.group(link.group or "")
    if group is None or other.cause != "load_imbalance" or not other.ranks:
        return False
    return {*other.ranks} <= {*group.ranks} and _whole(link) < EXPLAINS * _whole(other)


def is_turn(one: Recurring, other: Finding) -> bool:
    """Whether another finding is only the turn of its ranks in what the job loses to a different
    rank each time. It costs less, as is asked of all that is known beside a recurring loss. A rank
    that own times accuse is more than that, unless it is only a suspect."""
    if not isinstance(other, Slowdown) or not other.ranks:
        return False
    accused = other.score >= LEAST_SCORE and other.suspect is not None
    return not accused and {*other.ranks} <= {*one.in_turns}


def _waits_for_gil(one: Waste, other: Finding) -> bool:
    """Whether another finding is only what its ranks happened to run while a helper thread held
    their GIL. A finding that costs more has another reason."""
    if not one.holds_gil or other.cause not in SLOWED:
        return False
    ranks = not one.ranks or (bool(other.ranks) and {*other.ranks} <= {*one.ranks})
    return ranks and (other.lost_fraction or 0.0) < (one.lost_fraction or 0.0)


def _has_its_turn(job: Observed, one: Waste, other: Finding) -> bool:
    """Whether another finding is only the turn of its ranks in a loss that all ranks cause in
    turns, or their place in a queue that all ranks stand in.

    Where all wait at once, a rank that waits a little longer than the others is no fault of its
    own; one that costs half as much may be. So may one whose turns are longer than the others'.
    """
    if not (isinstance(other, Slowdown) and one.steps and other.steps):
        return False
    own = {*one.ranks}
    if other.cause != one.cause or (own and not {*other.ranks} <= own):
        return False
    within = is_within(other, one)
    if one.in_turns or one.one_source:
        return within and _whole(other) < _whole(one) and not _has_longer_turns(job, one, other)
    at_once = one.cause == "data_loading" and not own
    return within and at_once and _whole(other) < EXPLAINS * _whole(one)


def _has_longer_turns(job: Observed, one: Waste, other: Slowdown) -> bool:
    """Whether all wait for these ranks for twice as long as for others, when it is their turn."""
    if not one.in_turns or one.phase not in job.own.phases or one.steps is None:
        return False
    columns = np.flatnonzero(job.line.within(one.steps))
    own = job.own.of(one.phase)[:, columns]
    known = np.isfinite(own).any(axis=0)
    longest, leader = np.nanmax(own[:, known], axis=0), np.nanargmax(own[:, known], axis=0)
    theirs = np.isin(job.line.ranks[leader], other.ranks)
    turns = theirs & np.isin(columns[known], sorted(other.columns) or columns)
    if turns.sum() < LEAST_TURNS or theirs.all():
        return False
    return stats.median(longest[turns]) >= LONGER * stats.median(longest[~theirs])


def _whole(one: Finding) -> float:
    first, last = one.steps or (0, -1)
    return (one.lost_fraction or 0.0) * (last - first + 1)


def with_function(one: Waste, same: Sequence[Finding]) -> Finding:
    """The finding that names a function, or one that knows of a larger loss, with that function.

    What began with a rise of all, as far as steps show when that was, costs what steps became
    longer by: a host that stands still in a function has launched nothing, so its device stands
    still for longer.
    """
    largest = max(same, key=lambda other: other.lost_fraction or 0.0)
    smaller = (largest.lost_fraction or 0.0) <= (one.lost_fraction or 0.0)
    if not smaller and isinstance(largest, Regression) and _begin_within(BLOCK, one, largest):
        measured = f"{one.detail}; {largest.method}: {largest.detail}"
        return replace(one, lost_fraction=largest.lost_fraction, detail=measured)
    if smaller or not isinstance(largest, (Slowdown, Waste)) or not largest.says:
        return one
    where = short_frame(one.function or "")
    return replace(
        largest, function=one.function, says=f"{largest.says}, in {where}",
        detail=f"{largest.detail}; {one.method}: {one.detail}",
    )  # fmt: skip


class Merged(NamedTuple):
    """All findings, and the ones that added nothing new."""

    blamed: list[Finding]
    found: list[Finding]
    let_go: list[Finding]


def with_ends(window: Window, blamed: Sequence[Finding], found: Sequence[Finding]) -> Merged:
    """Known links, completed with the ranks that patterns name, and the remaining new findings."""
    merged = Merged(list(blamed), [], [])
    for one in found:
        named = isinstance(one, SlowLink) and one.ranks and one.devices
        new = _unknown(window, merged.blamed, one) if named else one
        if new is None:
            merged.let_go.append(rules.same_cause(one))
        else:
            merged.found.append(new)
    return merged


def _unknown(window: Window, blamed: list[Finding], link: Finding) -> Finding | None:
    """The link without ranks whose device is known; these are added to the known finding."""
    left = list(link.ranks)
    for at, known in enumerate(blamed):
        shared = {one.name for one in known.devices} & {one.name for one in link.devices}
        if not isinstance(known, SlowLink) or not shared:
            continue
        hosts = {*map(host_in, shared)}
        ranks = tuple(rank for rank in link.ranks if window.host_of(rank) in hosts)
        blamed[at] = replace(known, ranks=ranks)
        left = [rank for rank in left if rank not in ranks]
    if not left:
        return None
    hosts = {window.host_of(rank) or "" for rank in left}
    devices = tuple(one for one in link.devices if host_in(one.name) in hosts)
    return replace(link, ranks=tuple(left), devices=devices)
