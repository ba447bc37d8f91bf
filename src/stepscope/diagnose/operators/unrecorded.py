"""Waiting in operators that were not recorded, such as those within a pass of a large job.

A rank that waits in an unrecorded operator is absent from other operators, exactly like the rank it
waits for. Their host stacks distinguish them: a host that waits for its device may be blocked by
another rank. If all of them wait for their devices, the culprit is one of them, but it cannot be
identified.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from stepscope.diagnose.numeric.linked import connected
from stepscope.diagnose.operators.liveness import LifeSigns
from stepscope.diagnose.operators.open_ops import is_finished
from stepscope.diagnose.operators.standstill import innermost, waits_for_device
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.hidden_waits import WITHIN_PASSES
from stepscope.trace import ProcessGroup
from stepscope.window import Window


def unrecorded_groups(window: Window) -> list[ProcessGroup]:
    """Groups within passes that have no finished operator in `comm_ops`."""
    recorded = _recorded(window)
    return [one for one in window.job.groups_of_kind(*WITHIN_PASSES)
            if len(one.ranks) > 1 and one.id not in recorded]  # fmt: skip


def _recorded(window: Window) -> set[str]:
    comm = window.table("comm_ops")
    if comm is None:
        return set()
    names = comm.strings("group").values
    found = np.zeros(len(names) + 1, np.bool_)
    for _, part in comm.parts():
        # the last one is for null, whose code is -1, and for what did not finish
        found[np.where(is_finished(part), part.strings("group").codes, -1)] = True
    return {name for name, is_known in zip(names, found[:-1].tolist(), strict=True) if is_known}


def not_blocked_by_others(
    window: Window, signs: Mapping[int, LifeSigns], on_device: frozenset[int]
) -> frozenset[int]:
    """Absent ranks that no other absent rank can block; those `on_device` wait for their device."""
    waiting = {rank for rank, one in signs.items() if waits_for_device(one.stack)}
    found: set[int] = set()
    for part in coupled(unrecorded_groups(window), frozenset(signs)):
        found |= _free(part, signs, on_device | waiting)
    return frozenset(found)


def _free(
    part: frozenset[int], signs: Mapping[int, LifeSigns], waiting: frozenset[int]
) -> frozenset[int]:
    if len(part) == 1:
        return part
    free = part - waiting
    places = {rank: innermost(signs[rank].stack) for rank in free}
    place, count = Counter(places.values()).most_common(1)[0] if places else ("", 0)
    if place and HALF * len(part) < count < len(free):
        return frozenset(rank for rank in free if places[rank] != place)
    return free


def coupled(groups: Sequence[ProcessGroup], ranks: frozenset[int]) -> list[frozenset[int]]:
    """Splits ranks into parts; ranks linked by a group or a chain of groups are in one part."""
    members = [(rank,) for rank in ranks] + [group.ranks for group in groups]
    return [part for whole in connected(members) if (part := ranks.intersection(whole))]


def coupled_with(window: Window, ranks: frozenset[int]) -> frozenset[int]:
    """These ranks and all ranks that may wait for one of them in unrecorded operators."""
    return linked(unrecorded_groups(window), ranks)


def linked(groups: Sequence[ProcessGroup], ranks: frozenset[int]) -> frozenset[int]:
    """These ranks and all ranks linked to them by a group or by a chain of groups."""
    parts = connected(group.ranks for group in groups)
    return ranks.union(*(part for part in parts if not ranks.isdisjoint(part)))
