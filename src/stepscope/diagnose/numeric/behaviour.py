"""EROICA's distances between runtime behaviour patterns (Guan et al., 2026, section 4.3).

A pattern is (beta, mu, sigma). `beyond` is equation 7, `normalised` 8, `unlike` N times 9, and
`outliers` the second part of 11. Unknown coordinates are NaN and differ from nothing.

100 Delta is an integer, so its median and its MAD are exact counts in 101 bins. The comparison of
all workers with the sampled ones is compiled; without a compiler numpy does the same, ten times as
slowly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.diagnose.expected import Range
from stepscope.diagnose.numeric import compiled
from stepscope.window import Floats, Ints, Mask

Singles = NDArray[np.float32]

ROUNDING = 1e-6
"""A distance this close to the limit counts as reaching it: 1.0 - 0.6 is below 0.4 in float32.
Statistics."""
BLOCK = 8192
"""Workers that numpy compares at a time, so that the differences stay in the cache."""


def beyond(values: Floats, expected: Range) -> Floats:
    """How far values of one coordinate lie outside of their range; 0 where unknown."""
    above = np.maximum(values - expected.high, expected.low - values)
    return np.nan_to_num(np.maximum(above, 0.0))


def normalised(pattern: Singles) -> Singles:
    """`[coordinate, worker]`, each coordinate divided by its largest value; unknown is 0."""
    known = np.nan_to_num(pattern, nan=0.0)
    most = known.max(axis=1, initial=0.0, keepdims=True)
    return np.divide(known, np.where(most > 0, most, 1.0), dtype=np.float32)


def unlike(points: Singles, peers: Singles, limit: float) -> NDArray[np.int32]:
    """For each worker, how many of the peers are at a Manhattan distance of `limit` or more.

    Args:
        points: `[3, worker]`, all finite.
        peers: `[3, peer]`, all finite.
    """
    if compiled.unlike is None:
        return unlike_in_numpy(points, peers, limit)
    found = compiled.unlike(points.tobytes(), peers.tobytes(), limit - ROUNDING)
    return np.frombuffer(found, np.int32)


def unlike_in_numpy(points: Singles, peers: Singles, limit: float) -> NDArray[np.int32]:
    """The same in numpy."""
    counts = np.zeros(points.shape[1], np.int32)
    least = np.float32(limit - ROUNDING)
    for first in range(0, counts.size, BLOCK):
        part = points[:, first : first + BLOCK]
        for peer in peers.T:
            distance = np.abs(part - peer[:, None]).sum(axis=0)
            counts[first : first + BLOCK] += distance >= least
    return counts


def median_and_mad(counts: NDArray[np.int32], most: int) -> tuple[float, float]:
    """Median and MAD of counts between 0 and `most`, both exact."""
    bins = np.bincount(counts, minlength=most + 1)
    middle = _middle(np.arange(most + 1.0), bins)
    apart = np.abs(np.arange(most + 1) - middle)
    order = np.argsort(apart, kind="stable")
    return middle, _middle(apart[order], bins[order])


def _middle(values: Floats, times: Ints) -> float:
    """The median of sorted values, each of which occurs this many times."""
    total = np.cumsum(times)
    low, high = (int(total[-1]) - 1) // 2, int(total[-1]) // 2
    at = np.searchsorted(total, (low, high), side="right")
    return float(values[at[0]] + values[at[1]]) / 2


def outliers(counts: NDArray[np.int32], most: int, mads: float) -> Mask:
    """Workers that are unlike more peers than the median plus this many MADs."""
    middle, spread = median_and_mad(counts, most)
    found: Mask = counts > middle + mads * spread
    return found
