"""What limits an average step besides compute: communication, copies, or a late host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Literal

from stepscope.diagnose.finding import RankTime
from stepscope.diagnose.shown import Limit

Part = Literal["exposed_ns", "copy_ns", "host_wait_ns", "kernel_wait_ns", "other_ns"]
PARTS: tuple[Part, ...] = ("exposed_ns", "copy_ns", "host_wait_ns", "kernel_wait_ns", "other_ns")
NOTABLE_SHARE = 0.25
"""Share of a step that is worth a sentence; profiling itself delays the host a little. Our
simulator."""


def limits(times: Sequence[RankTime]) -> tuple[Limit, ...]:
    """Parts that take a quarter or more of an average step on the median rank, largest first."""
    if not times:
        return ()
    medians: Mapping[Part, float] = {
        part: median(getattr(time, part) for time in times) for part in PARTS
    }
    whole = sum(medians.values()) + median(time.compute_ns for time in times)
    notable = [Limit(part, value / whole) for part, value in medians.items()
               if whole > 0 and value >= NOTABLE_SHARE * whole]  # fmt: skip
    return tuple(sorted(notable, key=lambda one: -one.share))
