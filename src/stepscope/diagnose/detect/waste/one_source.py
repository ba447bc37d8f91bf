"""Ranks of several hosts that wait for data from one source, some longer than others.

Fault: a server of samples, or a storage, from which all ranks read, cannot keep up. It serves one
rank after another. In a job whose steps hold all ranks together the order hardly changes from step
to step, so the first ranks in the queue never wait, and the same ranks wait longest each time: they
look like culprits, and are not.
Ours: faults of single ranks do not begin in the same step on several hosts, and a fault that many
ranks share slows them down alike. What begins everywhere at once and differs by rank like places in
a queue has one source. Ranks that all waited from the first step on show no such beginning, and
ranks of one host alone may share something of that host.
Cost: medians of one phase. Cannot see: a queue of one or two ranks; what was slow from the start.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.account.waste import WITHIN, Stretch
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import HALF, LEAST_COST
from stepscope.window import Floats, Ints

SEVERAL = 3
"""Ranks in a queue, at least: with two, no one can tell a grade from a difference. Our choice."""
SPREAD = 2.0
"""The longest wait in those of the shortest: of a queue of three, places differ by more. Our
choice."""
SIGMAS = 5.0
"""A rank waits if it spends so many standard deviations more than before. Statistics."""


def queue_of(job: Observed, own: Floats, part: Stretch) -> Ints:
    """The rows of the ranks that wait for one source from the begin of a stretch on, the one that
    waits longest first; none if there is no such source.

    Args:
        own: how long each rank loads data, `[rank, step]`.
    """
    nobody = np.zeros(0, np.int64)
    first, skip = begin_of(own, part), job.line.warm_up
    if first - skip < WITHIN:
        return nobody
    before, inside = own[:, skip:first], own[:, first : part.stop]
    usual = stats.row_medians(before)
    rise = np.nan_to_num(stats.row_medians(inside) - usual)
    noise = np.array([stats.sigma(one) for one in before])
    least = np.maximum(SIGMAS * np.nan_to_num(noise), LEAST_COST * job.line.typical_ns)
    rows = np.flatnonzero(rise > least)
    rows = rows[np.argsort(-rise[rows], kind="stable")]
    if rows.size < SEVERAL or not _is_graded(rise[rows]) or _on_one_host(job, rows):
        return nobody
    half = (usual + HALF * rise)[rows]
    late = stats.row_medians(own[rows, first - WITHIN : first]) < half
    there = stats.row_medians(own[rows, first : first + WITHIN]) >= half
    return rows if bool((late & there).all()) else nobody


def begin_of(own: Floats, part: Stretch) -> int:
    """The column in which the longest wait of a stretch begins; its neighbours are in it, too."""
    longest = np.nan_to_num(np.fmax.reduce(own, axis=0, initial=np.nan))
    near = np.arange(max(part.first - WITHIN, 0), min(part.first + WITHIN, part.stop))
    there = longest[near] >= HALF * stats.median(longest[part.first : part.stop])
    return int(near[np.argmax(there)]) if there.any() else part.first


def _is_graded(rise: Floats) -> bool:
    """Whether waits, in order, spread over a range without falling into two kinds."""
    gaps = -np.diff(rise)
    spread = float(rise[0] - rise[-1])
    return bool(rise[0] >= SPREAD * rise[-1]) and bool(gaps.max() <= HALF * spread)


def _on_one_host(job: Observed, rows: Ints) -> bool:
    return len({job.window.host_of(int(job.line.ranks[row])) for row in rows}) < 2
