"""Downsamples step times for drawing.

Each bucket keeps its smallest and largest value, so a single slow step among thousands stays
visible. Which step of the bucket it was is lost.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from statistics import median

from stepscope.diagnose.shown import StepSeries

BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Bucket:
    """A run of consecutive steps, and how long they took."""

    first: int
    last: int
    low_ns: int
    median_ns: float
    high_ns: int


def buckets(series: StepSeries, limit: int) -> list[Bucket]:
    """The series in at most `limit` buckets of (nearly) equally many steps."""
    total = len(series.steps)
    number = min(limit, total)
    edges = [total * i // number for i in range(number + 1)] if number else []
    return [_bucket(series, start, stop) for start, stop in itertools.pairwise(edges)]


def _bucket(series: StepSeries, start: int, stop: int) -> Bucket:
    took = series.duration_ns[start:stop]
    steps = series.steps[start:stop]
    return Bucket(steps[0], steps[-1], min(took), median(took), max(took))


def sparkline(points: list[Bucket]) -> str:
    """One block per bucket, as high as its slowest step.

    The scale spans at least ±20 % around the median, so that noise looks like noise, and at most
    three medians, so that one enormous first step does not flatten the rest.
    """
    if not points:
        return ""
    usual = median(point.median_ns for point in points)
    low = min(0.8 * usual, *(point.low_ns for point in points))
    high = min(3 * usual, max(1.2 * usual, *(point.high_ns for point in points)))
    return "".join(_block(point.high_ns, low, high) for point in points)


def _block(value: float, low: float, high: float) -> str:
    share = (value - low) / (high - low) if high > low else 0.0
    return BLOCKS[min(max(int(share * len(BLOCKS)), 0), len(BLOCKS) - 1)]
