"""Ranks whose order of calls differs from their own in earlier steps.

Where ranks wait for one another in a circle, nobody is missing, but one of them called something
too early or left something out. A step repeats, so its calls tell which: those of a rank in the
step in which it hangs begin like those of one of its earlier steps, unless it departed.
A rank whose calls differ from step to step anyway shows nothing.
Cost: one sort of the calls of the ranks in question.
Cannot see: a fault in the first steps; equal calls that changed places.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from stepscope.trace import NO_PEER
from stepscope.window import Ints, Table, numbered

KNOWN_STEPS = 3
"""A rank's order is known after three steps that it called alike. Our simulator."""
RECENT_STEPS = 50
"""Steps that are compared: enough to contain one with a logged loss or a checkpoint. Our
simulator."""


def departed(comm: Table, ranks: Collection[int]) -> frozenset[int]:
    """The ranks whose newest step begins unlike any earlier step of theirs."""
    if not comm.has("step") or not ranks:
        return frozenset()
    own = comm.take(np.isin(comm.ints("rank"), sorted(ranks)))
    return frozenset(rank for rank, calls in own.per_rank() if _departs(calls))


def _departs(calls: Table) -> bool:
    steps = _by_step(calls)
    if not steps:
        return False
    *earlier, last = steps
    if len(earlier) < KNOWN_STEPS or not _repeats(earlier):
        return False
    return not any(one[: len(last)] == last for one in earlier)


def _repeats(earlier: list[tuple[int, ...]]) -> bool:
    """Whether the later half of these steps had no new calls; if it had, new calls are usual."""
    known, news = set(earlier[: len(earlier) // 2]), earlier[len(earlier) // 2 :]
    return all(one in known for one in news)


def _by_step(calls: Table) -> list[tuple[int, ...]]:
    """What was called in each of the newest steps, in the order of calls."""
    step = calls.ints("step")
    recent = calls.take((step >= 0) & (step >= int(step.max()) - RECENT_STEPS))
    if not len(recent):
        return []
    order = np.lexsort((recent.ints("enqueue_ns"), recent.ints("step")))
    kinds = _kinds(recent)[order]
    edges = np.flatnonzero(np.diff(recent.ints("step")[order])) + 1
    return [tuple(part.tolist()) for part in np.split(kinds, edges)]


def _kinds(calls: Table) -> Ints:
    """Numbers calls of the same operator in the same group with the same peer."""
    peer = calls.ints("peer") if calls.has("peer") else np.full(len(calls), NO_PEER)
    group, op = (calls.strings(name).codes.astype(np.int64) for name in ("group", "op"))
    return numbered(group, op, peer)
