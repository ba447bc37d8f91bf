"""Side by side what overlaps: slices of one track must not cross.

A lane is a track with the name of its siblings; Perfetto draws them as one, a row per depth.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from stepscope.window import Ints, Mask


def drawing_order(start_ns: Ints, end_ns: Ints) -> Ints:
    """By start; of those that start together the longest first, which so gets the first lane."""
    return np.lexsort((-end_ns, start_ns))


def lanes(start_ns: Ints, end_ns: Ints) -> Ints:
    """The first free lane of each slice, in order of `drawing_order`; touching is not overlapping.

    No more lanes than slices overlap at once. Slices that meet no other, which are nearly all, cost
    no Python.
    """
    lane = np.zeros(start_ns.size, np.int64)
    crowded = np.flatnonzero(_meets_another(start_ns, end_ns))
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    spans = zip(crowded.tolist(), start_ns[crowded].tolist(), end_ns[crowded].tolist(), strict=True)
    for row, start, end in spans:
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        lane[row] = chosen = heappop(free) if free else len(busy)
        heappush(busy, (end, chosen))
    return lane


def _meets_another(start_ns: Ints, end_ns: Ints) -> Mask:
    """Which slices overlap one before or after them."""
    if start_ns.size < 2:
        return np.zeros(start_ns.size, np.bool_)
    into = start_ns[1:] < np.maximum.accumulate(end_ns)[:-1]
    meets = np.zeros(start_ns.size, np.bool_)
    meets[1:] |= into
    meets[:-1] |= into
    return meets
