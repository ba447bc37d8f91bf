"""Ranks that a culprit on their own host keeps from the processor (blame rule 3).

A rank that collects garbage or computes too long on its processor takes it from its neighbours, who
wait for it: they are late, too, and victims. Cost: none to speak of. Cannot see: processes that are
no ranks (`explain.cpu`); hosts whose waiting for processors was not sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.diagnose.decide import rules
from stepscope.diagnose.finding import Slowdown, may_overlap
from stepscope.diagnose.observed import Observed

MOSTLY = 0.5
"""Part of the excess that is spent on a processor, or waiting for one. Our choice."""


def without_crowded_out(
    job: Observed, found: Sequence[Slowdown]
) -> tuple[list[Slowdown], list[Slowdown]]:
    """The findings to keep, and those that a neighbour explains."""
    kept, explained = list[Slowdown](), list[Slowdown]()
    for one in found:
        by = _taken_by(job, one, found)
        if by is None:
            kept.append(one)
        else:
            explained.append(rules.crowded_out(one, by.ranks))
    return kept, explained


def _taken_by(job: Observed, one: Slowdown, found: Sequence[Slowdown]) -> Slowdown | None:
    """The costlier culprit on the same host that has the processor while this rank waits for it."""
    if _use(one, "starved") < MOSTLY:
        return None
    others = [other for other in found if other is not one and _has_processor(job, other, one)]
    return max(others, key=lambda other: other.lost_ns, default=None)


def _has_processor(job: Observed, other: Slowdown, one: Slowdown) -> bool:
    """Whether a costlier rank computes on the same host meanwhile."""
    there = _hosts(job, other) == _hosts(job, one) and may_overlap(one.steps, other.steps)
    return there and other.lost_ns > one.lost_ns and _computes(other)


def _computes(one: Slowdown) -> bool:
    return one.cause == "gc" or _use(one, "computed") >= MOSTLY


def _use(one: Slowdown, how: str) -> float:
    """How much of its excess a rank spent in a way, by its use of the processor; 0 unknown."""
    shares = [seen.values.get(how) for seen in one.supporting if seen.method == "processor-use"]
    return max((share for share in shares if isinstance(share, float)), default=0.0)


def _hosts(job: Observed, one: Slowdown) -> frozenset[str | None]:
    return frozenset(job.window.host_of(rank) for rank in one.ranks)
