"""Which ranks hold up a job in which nobody makes progress, by positions and stacks.

Ranks of one pipeline stage and one role do the same in each step. One that has work left that
others of them have ended holds them up. In a pipeline the others of its replica are behind as well:
there it is the rank whose next pass has its input. Ranks that share operators within passes stop
together; only stacks distinguish them. So does a stack where no rank is behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.operators.positions import Position, Row
from stepscope.diagnose.operators.standstill import innermost, waits_for_device, waits_for_ranks
from stepscope.diagnose.operators.unrecorded import linked
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.hidden_waits import WITHIN_PASSES
from stepscope.diagnose.views.roles import roles
from stepscope.diagnose.words.advice import list_ranks
from stepscope.trace import BACKWARD, FORWARD, ProcessGroup
from stepscope.window import Window

LONGER, NOTABLE_NS = 2.0, 10**6
"""A host that pauses twice as long as its peers, and a millisecond more, waits. Our choice."""

Stacks = Mapping[int, Sequence[str]]


@dataclass(frozen=True)
class Holders:
    """The ranks that hold up the others, and how that is known."""

    ranks: frozenset[int]
    why: str
    by_stack: bool = False
    clear: bool = True
    """Whether it can be nothing but these ranks themselves."""


NOBODY = Holders(frozenset(), "all ranks stand at the same place", clear=False)


def holders(window: Window, found: Mapping[int, Position], stacks: Stacks) -> Holders:
    """The ranks that hold up a job that stands still."""
    behind = _behind(window, found)
    roots, sent = _with_input(window, found, behind)
    chosen = roots or behind
    odd = elsewhere(stacks, found.keys())
    odd = (odd & chosen if chosen else odd) or elsewhere(stacks, chosen)
    if odd:
        return Holders(odd, "its stack is elsewhere than where the others wait", by_stack=True)
    if not chosen or len(chosen) > HALF * len(found):
        return NOBODY
    together = not roots and _are_linked(window, chosen, found)
    if _is_shared(window, chosen, found.keys()) or together:
        one = ("one of " if len(chosen) > 1 else "") + list_ranks(sorted(chosen))
        return Holders(chosen, f"{one} is behind the others", clear=False)
    clear = not sent and not any(_pauses_there(found, rank) for rank in chosen)
    return Holders(chosen, _why(found, chosen), clear=clear)


def elsewhere(stacks: Stacks, ranks: Collection[int]) -> frozenset[int]:
    """The ranks that do not wait, if others do; else those in another function."""
    places = {rank: innermost(stacks[rank]) for rank in ranks if stacks.get(rank)}
    waiting = {rank for rank in places
               if waits_for_ranks(stacks[rank]) or waits_for_device(stacks[rank])}  # fmt: skip
    if not waiting and places:
        usual = Counter(places.values()).most_common(1)[0][0]
        waiting = {rank for rank, place in places.items() if place == usual}
    odd = frozenset(places.keys() - waiting)
    return odd if len(odd) <= HALF * len(places) else frozenset()


def _behind(window: Window, found: Mapping[int, Position]) -> frozenset[int]:
    """Ranks with work left that others of their stage and role have ended."""
    stage, cohorts = window.job.stage_by_rank, dict[tuple[int, int], list[Position]]()
    role = {window.ranks[row]: at for at, rows in enumerate(roles(window)) for row in rows}
    for rank, one in found.items():
        cohorts.setdefault((stage.get(rank, 0), role.get(rank, 0)), []).append(one)
    return frozenset(rank for cohort in cohorts.values() for rank in _behind_of(cohort))


def _behind_of(cohort: Sequence[Position]) -> Iterator[int]:
    common = set.intersection(*(set(one.expected) for one in cohort))
    left = {one.rank: (one.step, -sum(row in common for row in one.work)) for one in cohort}
    front = max(left.values())
    yield from (rank for rank, place in left.items() if place < front)


def _with_input(
    window: Window, found: Mapping[int, Position], behind: frozenset[int]
) -> tuple[frozenset[int], bool]:
    """The ranks whose next pass has its input, and whether one of them depends on a send for it."""
    roots, sent = set[int](), False
    for group in window.job.groups_of_kind("pp"):
        for at, rank in enumerate(group.ranks):
            if rank not in found or (behind and rank not in behind):
                continue
            one = found[rank]
            source = _source(group, at, one)
            if source is not None and _has_input(found, one, source):
                roots.add(rank)
                sent |= source != rank
    return frozenset(roots), sent


def _has_input(found: Mapping[int, Position], one: Position, source: int) -> bool:
    if source == one.rank:
        return True
    return source in found and found[source].has_ended(_next(one), one.step)


def _next(one: Position) -> Row:
    """The pass that a rank has to end next."""
    return next((row for row in one.work if row[0] in (FORWARD, BACKWARD)), ("", -1))


def _source(group: ProcessGroup, at: int, one: Position) -> int | None:
    """The rank whose output the next pass needs, or the rank itself if it needs none.

    None if that is not known: after its passes a rank waits for all others, and where several
    passes have one number, stages are interleaved.
    """
    if not one.work:
        return None
    if one.is_at_start:
        return group.ranks[at]  # before its first pass
    phase, microbatch = _next(one)
    if min(microbatch, one.work[0][1]) < 0 or one.expected.count((phase, microbatch)) > 1:
        return None
    there = at - 1 if phase == FORWARD else at + 1
    return group.ranks[there] if 0 <= there < len(group.ranks) else group.ranks[at]


def _pauses_there(found: Mapping[int, Position], rank: int) -> bool:
    """Whether this host, unlike others, pauses at this place in every step: it may wait for its
    device there, to log a loss."""
    at = found[rank].done
    peers = [one.pause_ns[at] for one in found.values() if one.rank != rank and at in one.pause_ns]
    own = found[rank].pause_ns.get(at, 0)
    return bool(peers) and own > LONGER * float(np.median(peers)) + NOTABLE_NS


def _is_shared(window: Window, ranks: frozenset[int], found: Collection[int]) -> bool:
    """Whether one of these ranks may wait for another, or for one that was not recorded."""
    groups = [one for one in window.job.groups_of_kind(*WITHIN_PASSES) if len(one.ranks) > 1]
    return any((linked(groups, frozenset((rank,))) - {rank}) - (frozenset(found) - ranks)
               for rank in ranks)  # fmt: skip


def _are_linked(window: Window, ranks: frozenset[int], found: Mapping[int, Position]) -> bool:
    """Whether two of these ranks are stages of one pipeline, where each waits for the others. They
    may be if nobody listed groups and they stand at different places."""
    if not window.job.groups:
        return len({(found[rank].step, found[rank].missing) for rank in ranks}) > 1
    return any(len(ranks.intersection(one.ranks)) > 1 for one in window.job.groups_of_kind("pp"))


def _why(found: Mapping[int, Position], ranks: frozenset[int]) -> str:
    one = found[min(ranks)]
    if not one.work:
        return "it is behind the others"
    return f"it has not ended {one.work[0][0]}"
