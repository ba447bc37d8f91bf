"""Whom ranks may wait for in operators that nobody recorded.

In large jobs the operators within a pass are often not recorded one by one. Whoever waits in one
is missed elsewhere just as the rank it waits for. What tells them apart is where their hosts
stand: who waits for its device may be kept by another's. Lossy: where all of them do, it is one
of them, and nobody can say which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from stepscope.diagnose.operators.liveness import Signs
from stepscope.diagnose.operators.open_ops import is_finished
from stepscope.diagnose.operators.standstill import innermost, waits_for_device
from stepscope.trace import ProcessGroup
from stepscope.window import Window

WITHIN_PASSES = ("tp", "cp", "ep", "mp")
"""Groups whose operators stand between two pieces of one pass."""
MOST = 0.5
"""Ranks that stand where most of those coupled with them stand are kept by one that does not."""


def unrecorded_groups(window: Window) -> list[ProcessGroup]:
    """Groups within passes of which no operator was recorded, but what may be in flight."""
    seen = _recorded(window)
    return [one for one in window.job.groups_of_kind(*WITHIN_PASSES)
            if len(one.ranks) > 1 and one.id not in seen]  # fmt: skip


def _recorded(window: Window) -> set[str]:
    comm = window.table("comm_ops")
    if comm is None:
        return set()
    names = comm.strings("group").values
    count = np.zeros(len(names) + 1, np.int64)
    for _, part in comm.parts():
        codes = part.strings("group").codes[is_finished(part)]
        count += np.bincount(codes + 1, minlength=len(count))
    return {name for name, rows in zip(names, count[1:], strict=True) if rows}


def not_kept(
    window: Window, signs: Mapping[int, Signs], on_device: frozenset[int]
) -> frozenset[int]:
    """Missed ranks that none of the others can keep; `on_device`: those that wait for theirs."""
    standing = {rank for rank, one in signs.items() if waits_for_device(one.stack)}
    found: set[int] = set()
    for part in coupled(unrecorded_groups(window), frozenset(signs)):
        found |= _free(part, signs, on_device | standing)
    return frozenset(found)


def _free(
    part: frozenset[int], signs: Mapping[int, Signs], waiting: frozenset[int]
) -> frozenset[int]:
    if len(part) == 1:
        return part
    free = part - waiting
    places = {rank: innermost(signs[rank].stack) for rank in free}
    place, count = Counter(places.values()).most_common(1)[0] if places else ("", 0)
    if place and MOST * len(part) < count < len(free):
        return frozenset(rank for rank in free if places[rank] != place)
    return free


def coupled(groups: Sequence[ProcessGroup], ranks: frozenset[int]) -> Iterator[frozenset[int]]:
    """The ranks in parts: whoever shares a group, or is linked by several, is in one."""
    of_rank = _groups_of(groups)
    left = set(ranks)
    while left:
        reached = _reached(of_rank, {min(left)})
        yield frozenset(left & reached)
        left -= reached


def coupled_with(window: Window, ranks: frozenset[int]) -> frozenset[int]:
    """These ranks and all that may wait for one of them where nobody recorded it."""
    return linked(unrecorded_groups(window), ranks)


def linked(groups: Sequence[ProcessGroup], ranks: frozenset[int]) -> frozenset[int]:
    """These ranks and whoever shares a group with one of them, or is linked by several."""
    return frozenset(_reached(_groups_of(groups), ranks))


def _groups_of(groups: Sequence[ProcessGroup]) -> Mapping[int, list[ProcessGroup]]:
    of_rank: dict[int, list[ProcessGroup]] = {}
    for group in groups:
        for rank in group.ranks:
            of_rank.setdefault(rank, []).append(group)
    return of_rank


def _reached(of_rank: Mapping[int, list[ProcessGroup]], starts: Iterable[int]) -> set[int]:
    reached = set(starts)
    edge = list(reached)
    while edge:
        near = {rank for group in of_rank.get(edge.pop(), ()) for rank in group.ranks}
        edge += near - reached
        reached |= near
    return reached
