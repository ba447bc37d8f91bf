"""Whether a culprit's device runs at a lower clock than its peers', or is not its alone.

Faults: a device that is held down for heat or power, and one on which others compute as well: its
kernels are slow and its work is equal.
Paper: ARGUS (2026), table 6, leaves the clock to people; section 9.5 warns that counters mislead.
So neither ever accuses a rank: they only tell slow work from more work on a rank that is slow.
EROICA (2026), appendix B: an idle model's collectives took multiprocessors; people looked for it.
Cost: means over a range. Cannot see: a bad chip at its full clock; clocks that nobody reads;
strangers in containers, whose processes the driver does not name to us.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed

LOW = 0.95
"""Of the peers' clock. Devices under one load differ by two or three steps of 15 in 1980 MHz; five
percent is the smallest slowdown that is looked for."""


def relative(job: Observed, row: int, first: int, stop: int) -> float | None:
    """The mean clock of one rank's device over its peers'; None where it was not read."""
    clocks = job.hardware("sm_clock_mhz", first, stop)
    usual = stats.median(np.delete(clocks, row))
    if not np.isfinite(clocks[row]) or usual <= 0:
        return None
    return float(clocks[row]) / usual


def strangers(job: Observed, row: int, first: int, stop: int) -> float:
    """By how many more processes outside the job a rank's device is used than its peers' are.

    A monitor that computes on each device is none: it slows all of them alike.
    """
    counts = job.hardware("gpu_strangers", first, stop)
    if not np.isfinite(counts[row]):
        return 0.0
    others = np.delete(counts, row)
    known = others[np.isfinite(others)]
    return float(counts[row]) - (float(np.median(known)) if known.size else 0.0)


def is_low(ratio: float | None) -> bool:
    """Whether a device is known to run below its peers."""
    return ratio is not None and ratio < LOW
