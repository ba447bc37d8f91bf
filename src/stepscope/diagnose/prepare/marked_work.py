"""Moments in which a rank worked, by what the recorder says: it marks each phase that may wait.

What is inferred from calls or from durations may not contradict it.
Cost: two unions of the rows of `phases`. Cannot see: phases of recorders that mark nothing.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.numeric.intervals import axis_over
from stepscope.window import NULL, Ints, Mask, Window, union


def in_marked_work(window: Window, rank: Ints, time_ns: Ints) -> Mask:
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
