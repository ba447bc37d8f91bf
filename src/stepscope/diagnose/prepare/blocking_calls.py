"""Ends of operators of which only the calls are known, if the calls themselves wait.

Where a call returns when all members have called, as with gloo and in every blocking log, no rank
calls again before the last one has called: the operator ended with its last call, but for its
transfer. Where calls return at once, as with NCCL, ranks that are early soon call again, and
nothing is known. So the log is tested: it must hold where a rank was so early that, without
waiting, it would have called again first. A call in a phase of which the recorder says that it does
not wait returns at once.
Cost: one match and one sort of the calls. Cannot see: transfers, which count as what follows; by
how much the clocks of hosts differ, which no end tells here: with several hosts a culprit can be
named, but no job can be called healthy.

In which moments a rank worked, a recorder says that marks each phase that may wait
(`_in_marked_work`); what is inferred from calls may not contradict it.
Cost: two unions of the rows of `phases`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.finding import Skipped
from stepscope.diagnose.numeric.intervals import axis_over
from stepscope.diagnose.prepare.call_times import next_calls
from stepscope.diagnose.prepare.host_waits import (
    CLOCKS_NS,
    MOST_CONTRADICTING,
    Calls,
    HostWaits,
    host_waits,
    places,
)
from stepscope.diagnose.prepare.matching import match
from stepscope.window import NULL, Ints, Mask, Table, Window, union

LEAST_EARLY = 30
"""Calls that were early enough to tell: with fewer, it may be chance. Statistics."""
WHY = Skipped("ends of operators", "not recorded; no rank called again before all had called, so "
              "calls wait for one another, and each ended with the last of them")  # fmt: skip

BY_SPREAD = Skipped("ends of operators", "not recorded; where ranks waited is inferred from what "
                    "their next calls follow most regularly: the operator's last call, their own "
                    "call before, or themselves a step before")  # fmt: skip


def with_blocking_ends(window: Window) -> tuple[Window, tuple[Skipped, ...]]:
    """The window with `end_ns` and `blocked_ns` of calls that wait, and a note; the same window
    where no call is seen to wait."""
    comm = window.table("comm_ops")
    if comm is None or comm.has("end_ns") or comm.has("start_ns") or not comm.has("step"):
        return window, ()
    calls = _Calls.of(window, comm)
    ends = calls.ends_ns()
    found = None if window.table("phases") is not None else _by_spread(window, comm, calls)
    if calls.wait() and not (found and found.some_return_at_once):
        note, waited = WHY, np.where(calls.working, 0, ends - calls.called_ns)
    elif found and found.known:
        note, waited = BY_SPREAD, found.blocked_ns
    else:
        return window, ()
    blocked = np.where(ends == NULL, NULL, waited)
    timed = comm.with_column("end_ns", ends).with_column("blocked_ns", blocked)
    return Window(window.job, {**window.tables, "comm_ops": timed}), (note,)


def _by_spread(window: Window, comm: Table, calls: _Calls) -> HostWaits:
    """Where ranks waited by the regularity of their calls."""
    return host_waits(Calls(
        comm.ints("rank"), places(window, comm, calls.called_ns), calls.called_ns, calls.last_ns,
        calls.whole & ~calls.sends,
    ))  # fmt: skip


def is_log(notes: tuple[Skipped, ...]) -> bool:
    """Whether only calls were recorded, by the notes of `with_blocking_ends`."""
    return bool({WHY, BY_SPREAD} & set(notes))


def undecided(window: Window, notes: tuple[Skipped, ...]) -> str:
    """Why nothing found by such ends does not mean that nothing is slow; empty where it does."""
    if not is_log(notes) or len(window.job.hosts) < 2:
        return ""
    return "only calls were recorded, which do not show how far the clocks of the hosts differ"


@dataclass(frozen=True)
class _Calls:
    called_ns: Ints
    next_ns: Ints
    """When the rank called the next operator; NULL if it did not."""
    key: Ints
    """The number of each row's operator."""
    whole: Mask
    """Rows of operators that all members called."""
    sends: Mask
    working: Mask
    """Rows that were called in a phase that does not wait."""

    @classmethod
    def of(cls, window: Window, comm: Table) -> _Calls:
        matched, called = match(comm), comm.ints("enqueue_ns")
        known = (matched.key >= 0) & (called != NULL)
        key = np.where(known, matched.key, matched.key.max(initial=-1) + 1)
        sizes = {group.id: len(group.ranks) for group in window.job.groups}
        names = comm.strings("group")
        size = np.array([*(sizes.get(name, 0) for name in names.values), 0])[names.codes]
        size = np.where(matched.p2p, 2, size)
        whole = known & (size > 1) & (np.bincount(key)[key] == size)
        sends = comm.strings("op").equals("Send")
        rank = comm.ints("rank")
        working = _in_marked_work(window, rank, called)
        return cls(called, next_calls(rank, called), key, whole, sends, working)

    @cached_property
    def last_ns(self) -> Ints:
        """The last call of each row's operator."""
        return _largest(self.key, self.called_ns)[self.key]

    def wait(self) -> bool:
        """Whether calls return when all have called, by those that were early."""
        rows = self.whole & ~self.sends & ~self.working & (self.next_ns != NULL)
        after = np.where(rows, self.next_ns - self.last_ns, _NEVER)
        quickest = -_largest(self.key, -np.maximum(after, 0))[self.key]
        early_ns = self.last_ns - self.called_ns
        early = rows & (early_ns > CLOCKS_NS) & (early_ns > quickest)
        contradicting = early & (after < -CLOCKS_NS)
        count = int(early.sum())
        return count >= LEAST_EARLY and int(contradicting.sum()) <= MOST_CONTRADICTING * count

    def ends_ns(self) -> Ints:
        """The end of each call; a send does not wait. NULL where not all have called."""
        ends = np.where(self.sends, self.called_ns, self.last_ns)
        return np.where(self.whole, ends, NULL)


_NEVER = np.iinfo(np.int64).max


def _largest(key: Ints, values: Ints) -> Ints:
    """The largest value of each key."""
    found = np.full(int(key.max(initial=0)) + 1, -_NEVER)
    np.maximum.at(found, key, values)
    return found


def _in_marked_work(window: Window, rank: Ints, time_ns: Ints) -> Mask:
    """Which moments lie in a phase that does not wait, and in none that may."""
    nowhere, phases = np.zeros(rank.size, np.bool_), window.table("phases")
    if phases is None or not phases.has("waits", "start_ns", "duration_ns") or not len(phases):
        return nowhere
    begin, of_rank, waits = (phases.ints(name) for name in ("start_ns", "rank", "waits"))
    known = (begin != NULL) & (of_rank >= 0)
    begin, of_rank, waits = begin[known], of_rank[known], waits[known]
    end = begin + phases.ints("duration_ns")[known]
    asked = (time_ns != NULL) & (rank >= 0)
    ranks = 1 + max(int(one.max(initial=0)) for one in (rank, of_rank))
    axis = axis_over(ranks, begin, end, time_ns[asked])
    if axis is None or not begin.size:
        return nowhere
    first, last = axis.at(of_rank, begin), axis.at(of_rank, end)
    works, may_wait = (union(first[waits == mark], last[waits == mark]) for mark in (0, 1))
    at = axis.at(rank[asked], time_ns[asked])
    nowhere[asked] = (works.within(at, at + 1) > 0) & (may_wait.within(at, at + 1) == 0)
    return nowhere
