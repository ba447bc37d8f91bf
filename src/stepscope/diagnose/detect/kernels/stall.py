"""The rank that all others waited for in a minute: rare stalls, by the longest kernels alone.

Fault: a rank, or a host, that stands still for seconds, rarely: it compiles a kernel, say.
Paper: ARGUS (2026), section 9.4 (case 4): a stall of 6 s, forty times what its pass takes, is
diluted in L2 and L3, and people found it by the maximum of each rank. In summaries of kernels it
shows in no kernel of that rank, whose device is idle, and in no percentile of the others.
What differs: a rank waits within a kernel of communication, and all others wait for the rank that
stalls, while it waits for no rank (blame rule 2). So of the longest executions of such kernels in a
window one rank's is far below all others': by a second at least, significantly over all ranks and
windows, and by three times what any other falls short of the usual (as in `slow_kernel`).
The first and the last rank of a job save and log for the others and are not accused; what the first
rank of each host does is done by all of them.
Cost: a sort per window. Cannot see: two ranks that stall in one window, for they wait for each
other; how often one does; what is shorter than a second, if it does not come back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect.kernels.slow_kernel import BEYOND, LEAST_GROUP
from stepscope.diagnose.detect.ranks.transient import STALL_NS
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.thresholds import FALSE_ALARMS
from stepscope.window import Floats, Ints


@dataclass(frozen=True)
class Stalled:
    """Ranks (rows of the grid) that all others waited for in some windows."""

    rows: tuple[int, ...]
    windows: tuple[int, ...]
    waited_ns: tuple[float, ...]
    """In each of these windows: the longest that another rank typically waited, beyond them."""


def stalled(longest: Floats, units: Sequence[Ints]) -> list[Stalled]:
    """Ranks that waited for no rank while all others waited.

    Args:
        longest: `[rank, window]`, of the kernels that wait, in ns; NaN unknown.
        units: rows that may stall together: those of each host.
    """
    found: dict[tuple[int, ...], list[tuple[int, float]]] = {}
    for window, column in enumerate(longest.T):
        for rows, waited_ns in _of_window(column, units, longest.size):
            found.setdefault(rows, []).append((window, waited_ns))
    on_duty = {(0,), (len(longest) - 1,)}
    ranks, windows = longest.shape
    stays = {rows: _stays(len(hits), windows, ranks) for rows, hits in found.items()}
    kept = {rows: [one for one in hits if stays[rows] or one[1] >= STALL_NS]
            for rows, hits in found.items() if rows not in on_duty}  # fmt: skip
    return [Stalled(rows, *zip(*hits, strict=True)) for rows, hits in kept.items() if hits]


def _stays(often: int, windows: int, ranks: int) -> bool:
    """Whether chance does not choose the same rank in so many windows: any of all ranks, in any of
    the windows, each time one of so many."""
    return math.comb(windows, often) * float(ranks) ** (1 - often) <= FALSE_ALARMS


def _of_window(
    longest: Floats, units: Sequence[Ints], tests: int
) -> list[tuple[tuple[int, ...], float]]:
    """The rows, if there are any, and how long the others waited."""
    known = np.flatnonzero(np.isfinite(longest))
    order = known[np.argsort(longest[known], kind="stable")]
    if order.size < LEAST_GROUP:
        return []
    rows = _least(order, units)
    others = longest[order[len(rows) :]]
    if others.size < LEAST_GROUP - 1:
        return []
    usual, least, own_ns = float(np.median(others)), float(others.min()), float(longest[rows].max())
    noise = max(stats.sigma(others), stats.NOISE_FLOOR * usual)
    needed = stats.threshold(FALSE_ALARMS, tests, others.size)
    stands_out = least > own_ns and usual - own_ns >= needed * noise
    stands_out &= usual - own_ns >= BEYOND * (usual - least)
    return [(tuple(sorted(rows)), usual - own_ns)] if stands_out else []


def _least(order: Ints, units: Sequence[Ints]) -> list[int]:
    """The row that waited least; or all rows of its host, if all of them waited least."""
    first = int(order[0])
    for unit in units:
        if first in unit and set(order[: unit.size].tolist()) == set(unit.tolist()):
            return [int(one) for one in unit]
    return [first]
