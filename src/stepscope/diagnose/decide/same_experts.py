"""Which ranks hold the same experts: those at the same place of their expert groups, in one stage.

If routing prefers an expert, every rank that holds it is slow, in every step, for one cause.
"""

from __future__ import annotations

from stepscope.diagnose.finding import Evidence, Slowdown
from stepscope.diagnose.views.peers import is_expert, stages
from stepscope.window import Window


def holders(window: Window) -> list[frozenset[int]]:
    """The ranks that hold the same experts, where there are several."""
    places: dict[tuple[int, int], set[int]] = {}
    stage = stages(window)
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
