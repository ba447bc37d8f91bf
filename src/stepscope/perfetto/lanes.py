"""Distributes overlapping slices of a track over lanes, because slices of one track must not cross.

A lane is a track with the same name as its siblings; Perfetto draws them as one, with several rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from stepscope.window import Ints, Mask


def in_order(start_ns: Ints, end_ns: Ints) -> bool:
    """Whether slices are in drawing order."""
    later = start_ns[1:] > start_ns[:-1]
    return bool((later | ((start_ns[1:] == start_ns[:-1]) & (end_ns[1:] <= end_ns[:-1]))).all())


def drawing_order(start_ns: Ints, end_ns: Ints) -> Ints:
    """The order by start; of slices with the same start the longest first, for the first lane."""
    return np.lexsort((-end_ns, start_ns))


def apart(start_ns: Ints, end_ns: Ints, until_ns: Sequence[int] = ()) -> bool:
    """Whether ordered slices do not overlap, and begin after all slices drawn before."""
    if not start_ns.size:
        return True
    return bool(start_ns[0] >= max(until_ns, default=0) and (start_ns[1:] >= end_ns[:-1]).all())


def lanes(start_ns: Ints, end_ns: Ints, until_ns: Sequence[int] = ()) -> Ints:
    """The first free lane of each slice, in `drawing_order`; touching slices do not overlap.

    Uses no more lanes than slices overlap. Slices that overlap no other, nearly all, are handled by
    numpy alone.

    Args:
        until_ns: until when each lane is occupied by slices drawn before.
    """
    lane = np.zeros(start_ns.size, np.int64)
    crowded = np.flatnonzero(_meets_another(start_ns, end_ns, max(until_ns, default=0)))
    free: list[int] = []
    busy = [(end, number) for number, end in enumerate(until_ns)]
    heapify(busy)
    spans = zip(crowded.tolist(), start_ns[crowded].tolist(), end_ns[crowded].tolist(), strict=True)
    for row, start, end in spans:
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        lane[row] = chosen = heappop(free) if free else len(busy)
        heappush(busy, (end, chosen))
    return lane


def _meets_another(start_ns: Ints, end_ns: Ints, until_ns: int) -> Mask:
    """Which slices overlap an earlier or a later one."""
    meets = np.zeros(start_ns.size, np.bool_)
    if start_ns.size:
        meets[0] = start_ns[0] < until_ns
        into = start_ns[1:] < np.maximum(np.maximum.accumulate(end_ns[:-1]), until_ns)
        meets[1:] |= into
        meets[:-1] |= into
    return meets
