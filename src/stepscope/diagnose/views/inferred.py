"""Waiting that was not marked, inferred from how ranks mirror each other.

Ranks that wait for each other leave together, so what one rank is late by comes back as the others'
surplus: a phase whose deviation from the peers is the opposite of what came before it contains
waiting. The parts of a step are walked in order of time, from how late each rank began the step.
In a mirrored phase a rank waited for as long as it was earlier than the last one. Each kind of
group is asked, because in some phases only a part of the ranks wait for each other; and so is each
role, because ranks that do other work are late by design.

Cost: a few passes over `[rank, step]` for each phase and kind of group.
Cannot see: which member of a group took long in a phase in which only the group waits for itself.
In pipelines, waiting between stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.prepare.communication import communicates
from stepscope.diagnose.views.hidden_waits import WITHIN_PASSES
from stepscope.diagnose.views.meetings import (
    Meeting,
    joined,
    late_starts,
    leaving_together,
    levelled_by,
    meetings,
)
from stepscope.diagnose.views.phase_rows import PhaseRows
from stepscope.diagnose.views.roles import roles
from stepscope.diagnose.views.tiles import Part, Tiles
from stepscope.diagnose.views.unnamed import is_staged, waiting
from stepscope.window import Floats, Ints, Mask, Window

MIRROR = (0.6, 1.4)
"""Minus the slope of a phase that gives back what came before it: 1 without noise. Measured on real
data (`shared/real`)."""
LEAST_LATE = 0.005
"""Lateness below this share of the step time shows nothing about waiting. Measured on real data."""
APART = 0.5
"""Ranks that leave together are apart by less than this share of what they were before: halfway
between all and nothing."""
LEAST_CELLS = 8
"""Ranks and steps with lateness whose median slope has the right sign by chance in less than one of
a hundred cases. Statistics (binomial)."""


@dataclass(frozen=True)
class Walk:
    """A step as parts in order of time, and which ranks may wait for each other in them."""

    parts: list[Part]
    ways: list[Meeting]
    """The widest first."""
    late: Floats
    """By how much each rank begins each step late, `[rank, step]` in ns."""
    floor_ns: float
    """Less lateness shows nothing."""
    listed: bool = True
    """Whether any group of ranks is known."""
    timed: bool = True
    """Whether times may contradict names: not where starts were made up, and the time in no phase
    may have been before any of them. Stages of a pipeline are never level after a transfer."""
    passing: frozenset[str] = frozenset()
    """Phases in which ranks wait for one other rank's data."""
    by_role: tuple[Meeting, ...] = ()
    """Ranks with the same role, if there are several: they wait for the same others."""

    @classmethod
    def of(cls, window: Window, rows: PhaseRows, own: Mapping[str, Floats]) -> Walk:
        """The steps of these rows, with the own time of phases as far as it is known."""
        tiles = Tiles.of(rows, waiting(window, rows))
        parts = tiles.parts(own)
        ways, floor_ns = meetings(window), LEAST_LATE * rows.line.typical_ns
        late = _late_at_start(parts, ways, late_starts(window, rows.line), floor_ns)
        listed, timed = bool(window.job.groups), not rows.made_up or bool(tiles.passing)
        parted = tuple(one for one in roles(window) if one.size > 1)
        by_role = () if is_staged(window) or len(parted) < 2 else (Meeting("role", parted),)
        return cls(parts, ways, late, floor_ns, listed, timed, tiles.passing, by_role)


@dataclass(frozen=True)
class Inferred:
    """The parts of a step less waiting that nobody marked."""

    parts: list[Part]
    waited: tuple[str, ...]
    """Phases in which ranks waited."""
    shared: tuple[str, ...]
    """Those of them in which only a part of the peers waited for each other. What such a group
    takes longer than the others is the time of one member, and nobody knows of which."""


def without_waiting(walk: Walk, peers: Sequence[Ints]) -> Inferred:
    """The parts of a step less inferred waiting; `peers` are ranks that do equal work."""
    found: list[Part] = []
    waited: list[str] = []
    shared = [name for name in walk.passing if not communicates(name)]
    late, ways = walk.late, walk.ways
    for part in walk.parts:
        if part.alternates or (not part.gap and communicates(part.phase)):
            after = late + _longer(part.own)
            level = None if part.alternates else levelled_by(part.phase, ways)
            levels = level is not None and (
                not walk.timed or _leave_together(level.groups, late, after, walk.floor_ns)
            )
            late = _latest(late, level.groups) if level is not None and levels else after
            found.append(part)
            continue
        asked = [*ways, *walk.by_role]
        if not (part.gap or walk.listed):
            asked += leaving_together(late + _longer(part.own), walk.floor_ns)
        together = joined(_mirrored_by(part, asked, late, walk.floor_ns))
        last = _latest(late, together)
        own = np.maximum(part.own - (last - late), 0.0)
        late = last + _longer(own)
        if together:
            waited.append(part.phase)
        if together and not _cover(together, peers):
            shared.append(part.phase)
            own = _at_most_usual(own, peers) if part.gap else own
        found.append(replace(part, own=own))
    found = _untimed_waits(walk, found)
    return Inferred(found, tuple(dict.fromkeys(waited)), tuple(dict.fromkeys(shared)))


def _untimed_waits(walk: Walk, parts: Sequence[Part]) -> list[Part]:
    """The parts; where nobody knows when in a step the time in no phase was, that time less what
    a rank may have waited in it for one that took longer in its phases of that step.

    Ranks of groups that nobody listed may wait in no phase, and the others in a phase. What is
    mostly no more than another rank's own excess in the same step is its echo.
    """
    if walk.timed:
        return list(parts)
    named = [one.own for one in parts if not one.gap and not communicates(one.phase)]
    taken = sum((_longer(own).clip(0.0) for own in named), walk.late)
    room = np.maximum(taken.max(axis=0) - taken, 0.0)
    found = []
    for one in parts:
        excess = np.maximum(_longer(one.own), 0.0) if one.gap else np.zeros_like(taken)
        waits = np.minimum(excess, room)
        waits = np.where(waits >= APART * excess, waits, 0.0)
        room = room - waits
        found.append(replace(one, own=one.own - waits))
    return found


def without_shared_excess(own: Floats, ways: Sequence[Meeting]) -> Floats:
    """Own time in a phase less what all members of a group within a replica take longer alike.

    Step by step, the member that takes the shortest is compared with those of other groups. What it
    takes longer may be waiting in all members but one, and nobody knows in which.
    """
    for groups in (one.groups for one in ways if one.kind in WITHIN_PASSES and len(one.groups) > 1):
        least = np.stack([own[group].min(axis=0) for group in groups])
        shared = np.maximum(np.nan_to_num(least - stats.column_median(least)), 0.0)
        own = own.copy()
        for group, excess in zip(groups, shared, strict=True):
            own[group] -= excess
    return own


def _late_at_start(
    parts: Sequence[Part], ways: Sequence[Meeting], candidates: Sequence[Floats], floor_ns: float
) -> Floats:
    """By how much each rank begins each step late: what clocks say, if a phase gives it back.

    Otherwise clocks may differ, and all ranks are taken to begin together.
    """
    for late in candidates:
        if any(_mirrored_by(part, ways, late, floor_ns) for part in parts):
            return late
    return np.zeros_like(parts[0].own)


def _longer(own: Floats) -> Floats:
    """How much longer than the median rank each rank takes, step by step; 0 if unknown."""
    return np.nan_to_num(own - stats.column_median(own))


def _deviation(own: Floats, groups: Sequence[Ints]) -> Floats:
    """Deviation from the median of the group, step by step; 0 for ranks in no group."""
    found = np.zeros_like(own)
    for rows in groups:
        found[rows] = own[rows] - stats.column_median(own[rows])
    return found


def _latest(late: Floats, groups: Sequence[Ints]) -> Floats:
    """The lateness of the last of each group."""
    found = late.copy()
    for rows in groups:
        found[rows] = late[rows].max(axis=0)
    return found


def _leave_together(groups: Sequence[Ints], before: Floats, after: Floats, floor_ns: float) -> bool:
    """Whether members of each group are less apart after a phase than before, as far as that
    matters: lateness that stays was not waited for."""
    was, is_now = np.abs(_deviation(before, groups)), np.abs(_deviation(after, groups))
    big = np.maximum(was, is_now) > floor_ns
    return bool(big.sum() < LEAST_CELLS or is_now[big].sum() < APART * was[big].sum())


def _cover(together: Sequence[Ints], peers: Sequence[Ints]) -> bool:
    """Whether all peers of every rank waited for each other."""
    return all(any(np.isin(group, one).all() for one in together) for group in peers)


def _at_most_usual(own: Floats, peers: Sequence[Ints]) -> Floats:
    """Values limited to the median of the peers."""
    found = own.copy()
    for rows in peers:
        found[rows] = np.fmin(own[rows], stats.column_median(own[rows]))
    return found


def _mirrored_by(
    part: Part, ways: Sequence[Meeting], late: Floats, floor_ns: float
) -> list[Meeting]:
    """The ranks that gave back in this part what they were late by; the widest alone if it did."""
    found = [
        one
        for one in ways
        if mirrors(_deviation(part.own, one.groups), _deviation(late, one.groups), floor_ns)
    ]
    return found[:1] if found and found[0] is ways[0] else found


def mirrors(deviation: Floats, late: Floats, floor_ns: float) -> bool:
    """Whether what came before is given back: by the median slope, weighted by lateness."""
    big: Mask = (np.abs(late) > floor_ns) & np.isfinite(deviation)
    if big.sum() < LEAST_CELLS:
        return False
    slope, weight = -deviation[big] / late[big], np.abs(late[big])
    order = slope.argsort()
    total = weight[order].cumsum()
    middle = slope[order][np.searchsorted(total, total[-1] / 2)]
    return bool(MIRROR[0] < middle < MIRROR[1])
