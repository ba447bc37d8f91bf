"""Offset and drift of one clock relative to another: a line, in pieces if the clock was set.

Lines are fitted by medians: the slope from pairs half a window apart (Theil, A rank-invariant
method of regression, 1950, incomplete version), then the offset from the median residual of each
piece.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.window import NULL, Floats, Ints

LEAST_FOR_DRIFT, LEAST_SPAN_NS = 40, 30 * 10**9
"""A drift of 10 ppm makes 0.3 ms in half a minute; over a shorter time, the noise of leaving a
collective would look like drift. Our simulator."""
LARGEST_DRIFT = 500e-6
"""NTP slews by at most 500 ppm and crystals are off by less than 100 ppm: more is not drift. Our
simulator."""
JUMP_NS, JUMP_SIGMAS, JUMP_SIDE = 2 * 10**6, 20.0, 5
"""A clock was set if the medians of five values on either side differ by more than this, which the
noise of leaving a collective does not cause. Our simulator."""
MOST_JUMPS = 3
"""At most this many jumps per clock are corrected. Our simulator."""


@dataclass(frozen=True)
class Line:
    """Difference of one clock to the reference: pieces of constant offset, and one drift."""

    starts_ns: Ints
    offsets_ns: Floats
    drift: float
    origin_ns: int

    def at(self, time_ns: Ints) -> Ints:
        moved = self.drift * (time_ns - self.origin_ns).astype(np.float64)
        moved += self.offsets_ns[0] if self.offsets_ns.size == 1 else self._offsets_at(time_ns)
        return np.rint(moved, out=moved).astype(np.int64)

    def _offsets_at(self, time_ns: Ints) -> Floats:
        piece = np.maximum(np.searchsorted(self.starts_ns, time_ns, side="right") - 1, 0)
        return np.asarray(self.offsets_ns[piece])


def constant(offset_ns: float, origin_ns: int) -> Line:
    """A clock with a constant offset from the reference."""
    return Line(np.array([NULL]), np.array([offset_ns]), 0.0, origin_ns)


def line_through(times: Ints, difference: Floats, origin: int, apart_ns: float = 0.0) -> Line:
    """Fits a line: pieces between jumps, a drift from all pieces, and the offset of each.

    Args:
        apart_ns: the two sides may have left a collective this far apart: less is no jump.
    """
    cuts = _jumps(difference, max(JUMP_NS, apart_ns))
    edges = [0, *cuts, difference.size]
    pieces = [slice(first, stop) for first, stop in itertools.pairwise(edges)]
    drift = _drift(times, difference, pieces)
    rest = difference - drift * (times - origin).astype(np.float64)
    offsets = np.array([stats.median(rest[piece]) for piece in pieces])
    starts = np.array([NULL, *(int(times[cut]) for cut in cuts)], np.int64)
    return Line(starts, offsets, drift, origin)


def _jumps(difference: Floats, least_ns: float) -> list[int]:
    """Where the difference jumps by more than noise, at most MOST_JUMPS times."""
    if difference.size < 2 * JUMP_SIDE + 1 or np.ptp(difference) <= least_ns:
        return []  # medians differ by no more than their values
    side = np.lib.stride_tricks.sliding_window_view(difference, JUMP_SIDE)
    middle = np.sort(side, axis=1)[:, JUMP_SIDE // 2]
    step = np.abs(middle[JUMP_SIDE:] - middle[:-JUMP_SIDE])
    limit = max(least_ns, JUMP_SIGMAS * stats.sigma(np.diff(difference)))
    cuts: list[int] = []
    while len(cuts) < MOST_JUMPS and step.size and step.max() > limit:
        cut = int(np.argmax(step)) + JUMP_SIDE
        cuts.append(_exactly(difference, cut))
        step[max(cut - 2 * JUMP_SIDE, 0) : cut + JUMP_SIDE] = 0
    return sorted(set(cuts))


def _exactly(difference: Floats, near: int) -> int:
    low, high = max(near - JUMP_SIDE, 1), min(near + JUMP_SIDE, difference.size - 1)
    step = np.abs(np.diff(difference[low - 1 : high + 1]))
    return low + int(np.argmax(step))


def _drift(times: Ints, difference: Floats, pieces: Sequence[slice]) -> float:
    if times[-1] - times[0] < LEAST_SPAN_NS:
        return 0.0
    known = np.concatenate([_slopes(times[piece], difference[piece]) for piece in pieces])
    if not known.size:
        return 0.0
    drift = stats.median(known)
    return drift if abs(drift) <= LARGEST_DRIFT else 0.0


def _slopes(times: Ints, difference: Floats) -> Floats:
    half = times.size // 2
    if times.size < LEAST_FOR_DRIFT:
        return np.zeros(0)
    run = (times[half:] - times[: times.size - half]).astype(np.float64)
    rise = difference[half:] - difference[: times.size - half]
    return rise[run > 0] / run[run > 0]
