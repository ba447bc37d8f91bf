"""Since when a rank has waited in an operator: the other operators that it reaches show its
progress.

Receives are posted ahead: on the device's communication stream they are in progress while the rank
still computes what comes before them. A rank waits for its input only when it has finished what its
program does before the receive. What it sends shows that: a send starts when its data was computed,
unless it was behind another send. So does every collective within the passes. For the same reason a
rank does not wait in one that is in progress beside them, as those of data parallel groups are,
until it reaches no other one. A receive in which its rank never calls anything else was not posted
ahead.

The program's order is the order of host calls. If these were not recorded, operators are taken in
the order in which they ended. That is true where collectives within the passes show how far a rank
has computed. Without these nobody knows (`order_known`): a receive that ended during computation
would count as waiting, and the rank whose input came late as the slowest.

There are operators that a program does not wait for at once (`not_awaited_before`). Gradients are
exchanged beside the backward pass. A rank that is ahead of the others goes on to its next operators
within passes, one after another, while the exchange waits for the last rank. How far ranks get
shows up to where the program does not wait, and of reductions, which only the optimizer needs, that
it waits after the last operator within passes. This is the same for all ranks: one that is never
ahead waits no earlier than the others.

Cost: two sorts of the operators within passes. Cannot see: programs without such operators.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.numeric.intervals import Axis
from stepscope.diagnose.prepare.call_times import next_calls, recorded_calls
from stepscope.diagnose.prepare.matching import arrivals
from stepscope.diagnose.thresholds import AT_ONCE_NS
from stepscope.window import NULL, Ints, Mask, Table

MAYBE_AFTER = 1 / 3
"""In this last part of an operator another one may begin that followed it: ends are noted late by
up to half of the wait (`step_graph.NOTED_LATE`). Our simulator."""

MOST_DURING, CLOSE_NS = 0.02, 10**6
"""Part of the receives during which their rank may call something, more than a millisecond before
they end: threads note ends late. As in `align`."""
BLOCKING_SENDS = 0.1
"""At most this part of the time in sends belongs to sends that hold another operator's begin, where
sends block: rows of other threads. Our choice; of sends that do not block it is a third and
more. Most of these are too short to show anything: by their number it may be less than this."""
NEVER = 0
"""No operator is reached during another one."""


def order_known(comm: Table, begin: Ints, within: Mask) -> bool:
    """Whether the data shows since when receives were awaited.

    Args:
        begin: arrivals of all rows in ns.
        within: operators within passes.
    """
    receives = comm.strings("op").equals("Recv")
    if not receives.any() or _block_throughout(comm, receives):
        return True
    return bool(within.any() or (comm.ints("enqueue_ns") < begin).any())


def awaited_since(
    comm: Table, rank: Ints, begin: Ints, end: Ints, axis: Axis, proofs: Mask
) -> Ints:
    """For each row when the rank began to wait in it, on the axis.

    Args:
        comm: operators that ended.
        rank: rows of their ranks on the axis.
        begin: their arrivals in ns.
        end: their ends in ns.
        axis: places times of all ranks.
        proofs: operators that start when the computation before them has finished.
    """
    receives = comm.strings("op").equals("Recv")
    first, last = axis.at(rank, begin), axis.at(rank, end)
    calls = begin <= comm.ints("enqueue_ns")  # a host that is blocked calls nothing
    calls &= recorded_calls(comm)  # a device starts operators on several streams beside each other
    if _block_throughout(comm, receives):
        return first
    proofs_of_data = proofs & ~receives & ~_queued(comm, first, last)
    began = first
    first = np.where(receives, first, _last_call(first, last, (proofs | calls) & ~receives))
    if not receives.any():
        return first
    called = comm.ints("enqueue_ns")
    order = np.lexsort((called if bool((called < begin).any()) else end, rank))
    reached = np.where(proofs_of_data, began, rank * axis.span_ns)
    computed = np.empty_like(first)
    computed[order] = np.maximum.accumulate(reached[order])
    return np.where(receives, np.clip(computed, first, last), first)


def sends_beside_work(comm: Table, first: Ints, last: Ints) -> Mask:
    """Sends during which the rank computes: all of them, if ranks reached other operators in the
    middle of enough of their time in sends. A program whose sends block reaches none.

    Args:
        first, last: when each operator began and ended, on the axis of all ranks.
    """
    sends = comm.strings("op").equals("Send")
    beside = _last_call(first, last, np.ones(len(comm), np.bool_)) > first
    took = np.where(sends, last - first, 0)
    return sends & bool(took[beside].sum() > BLOCKING_SENDS * took.sum())


def _queued(comm: Table, first: Ints, last: Ints) -> Mask:
    """Sends that began when another send of their rank ended: their data was there before."""
    sends = comm.strings("op").equals("Send")
    ends = np.sort(last[sends])
    if not ends.size:
        return sends
    nearest = ends[np.searchsorted(ends, first + AT_ONCE_NS, side="right").clip(1) - 1]
    return np.asarray(sends & (np.abs(first - nearest) <= AT_ONCE_NS))


def _block_throughout(comm: Table, receives: Mask) -> bool:
    """Whether receives are known to have blocked their rank from their call to their end: by how
    long they blocked, else because ranks with known calls neither call nor start anything else
    during them. A host may wait for a receive while its device still does what came before it."""
    if not receives.any() or not comm.has("end_ns"):
        return False
    called, end = comm.ints("enqueue_ns"), comm.ints("end_ns")
    if comm.has("blocked_ns"):
        return bool((comm.ints("blocked_ns") == end - called)[receives].all())
    if not recorded_calls(comm).all():
        return False
    rank, others = comm.ints("rank"), ~receives
    moments = np.concatenate((called, arrivals(comm)[others]))
    following = next_calls(np.concatenate((rank, rank[others])), moments)[: len(comm)]
    during = (following != NULL) & (following < end - CLOSE_NS)
    return bool(during[receives].mean() <= MOST_DURING)


def _last_call(first: Ints, last: Ints, proofs: Mask) -> Ints:
    """When the last operator began while each one was in progress; its own begin if none did.

    A rank that reaches another operator computes beside the one in progress. One that is reached at
    the very end of another may have followed it: threads note ends late.
    """
    places = np.sort(first[proofs])
    if not places.size:
        return first
    until = last - np.asarray((last - first) * MAYBE_AFTER, np.int64)
    at = np.searchsorted(places, until) - 1
    return np.where(at >= 0, np.maximum(first, places[at.clip(0)]), first)


def not_awaited_before(
    cell: Ints, place: Ints, first: Ints, last: Ints, proofs: Mask, reductions: Mask
) -> Ints:
    """For each row from when on its rank may wait in it, on the axis.

    Args:
        cell: the rank and step of each row, as one number that grows along the axis.
        place: what each row is in its step, the same number on all ranks.
        first, last: when each row began and ended, on the axis.
        proofs: operators within passes, which begin when the work before them is done.
        reductions: operators that combine gradients.
    """
    reached = np.sort(first[proofs])
    begins = np.searchsorted(np.sort(cell[proofs]), np.arange(int(cell.max()) + 2))
    others = np.flatnonzero(~proofs)
    cells, until = cell[others], last[others] - ((last - first)[others] * MAYBE_AFTER).astype(int)
    during = np.searchsorted(reached, until) - begins[cells]
    during = np.where(during > np.searchsorted(reached, first[others]) - begins[cells], during, 0)
    every, usual = np.diff(begins)[cells], _usual(place[others], during)[place[others]]
    beside = reductions[others] & bool((reductions[others] & (usual > NEVER)).any())
    number = np.where(beside, every, np.minimum(usual, every))
    at = (begins[cells] + number - 1).clip(0, max(reached.size - 1, 0))
    since = first.copy()
    later = number > NEVER
    since[others[later]] = np.clip(reached[at[later]], first[others[later]], last[others[later]])
    return since


def _usual(place: Ints, during: Ints) -> Ints:
    """For each place the operators within passes that all but a few ranks and steps reach at most,
    counted from the begin of the step; `NEVER` where only a few reach any during the operator."""
    order = np.lexsort((during, place))
    counts = np.bincount(place)
    rank_of = np.cumsum(counts) - 1 - (counts * MOST_DURING).astype(np.int64)
    return np.where(counts > 0, during[order][rank_of.clip(0)], NEVER)
