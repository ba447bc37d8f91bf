"""Ranks whose order of calls differs from their own in earlier steps, or from their equals'.

Where ranks wait for one another in a circle, nobody is missing, but one of them called something
too early or left something out. A step repeats, so its calls tell which: those of a rank in the
step in which it hangs begin like those of one of its earlier steps, unless it departed.
A rank whose calls differ from step to step anyway shows nothing. After fewer steps, ranks with the
same program tell: those that called the same as this one in every step before.
Cost: one sort of the calls of the ranks in question.
Cannot see: a fault in the first steps; equal calls that changed places.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from stepscope.diagnose.operators.equals import VOTES
from stepscope.diagnose.prepare.matching import kinds_and_operators
from stepscope.trace import NO_PEER, ProcessGroup
from stepscope.window import Ints, Table, Window, numbered

KNOWN_STEPS = 3
"""A rank's order is known after three steps that it called alike. Our simulator."""
RECENT_STEPS = 50
"""Steps that are compared: enough to contain one with a logged loss or a checkpoint. Our
simulator."""
PLACE = "place"
"""A column for what a call is in terms that equal ranks share."""


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


def departed_from_equals(window: Window, ranks: Collection[int]) -> frozenset[int]:
    """The ranks whose newest step differs from those of ranks that had called the same before."""
    comm = window.tables["comm_ops"]
    if not comm.has("step") or not (comm.ints("step") >= 0).any():
        return frozenset()
    newest = int(comm.ints("step").max())
    recent = comm.take((comm.ints("step") >= 0) & (comm.ints("step") >= newest - RECENT_STEPS))
    recent = recent.with_column(PLACE, _places(window, recent))
    cohorts: dict[tuple[tuple[int, ...], ...], dict[int, tuple[int, ...]]] = {}
    for rank, calls in recent.per_rank():
        *earlier, last = _by_step(calls)
        if earlier and int(calls.ints("step").max()) == newest:
            cohorts.setdefault(tuple(earlier), {})[rank] = last
    return frozenset(rank for cohort in cohorts.values() for rank in cohort.keys() & set(ranks)
                     if _leaves(cohort, rank))  # fmt: skip


def _leaves(cohort: Mapping[int, tuple[int, ...]], rank: int) -> bool:
    """Whether a rank called something else than its equals, which called the same."""
    mine, others = cohort[rank], [one for other, one in cohort.items() if other != rank]
    longest = max(others, key=len, default=())
    if any(longest[: len(one)] != one for one in others):
        return False
    at = next((at for at, pair in enumerate(zip(mine, longest, strict=False))
               if pair[0] != pair[1]), None)  # fmt: skip
    return at is not None and sum(len(one) > at for one in others) >= VOTES


def _places(window: Window, comm: Table) -> Ints:
    """Numbers calls of the same operator in the same kind of group, with a peer that is as far
    away."""
    names = comm.strings("group")
    group = names.codes.astype(np.int64)
    known = [window.job.group(name) for name in names.values]
    peer = comm.ints("peer") if comm.has("peer") else np.full(len(comm), NO_PEER)
    away = np.where(peer < 0, 0, _position(known, group, peer)
                    - _position(known, group, comm.ints("rank")))  # fmt: skip
    return numbered(kinds_and_operators(window, comm), away)


def _position(known: Sequence[ProcessGroup | None], group: Ints, ranks: Ints) -> Ints:
    """The places of ranks in their groups; the ranks themselves where these are not known."""
    found = ranks.astype(np.int64)
    for code, one in enumerate(known):
        if one is None or not (rows := np.flatnonzero(group == code)).size:
            continue
        members = np.array(one.ranks, np.int64)
        order = np.argsort(members)
        at = np.minimum(np.searchsorted(members[order], ranks[rows]), members.size - 1)
        found[rows] = order[at]
    return found


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
    order = np.lexsort((recent.ints("seq"), recent.ints("enqueue_ns"), recent.ints("step")))
    kinds = (recent.ints(PLACE) if recent.has(PLACE) else _kinds(recent))[order]
    edges = np.flatnonzero(np.diff(recent.ints("step")[order])) + 1
    return [tuple(part.tolist()) for part in np.split(kinds, edges)]


def _kinds(calls: Table) -> Ints:
    """Numbers calls of the same operator in the same group with the same peer."""
    peer = calls.ints("peer") if calls.has("peer") else np.full(len(calls), NO_PEER)
    group, op = (calls.strings(name).codes.astype(np.int64) for name in ("group", "op"))
    return numbered(group, op, peer)
