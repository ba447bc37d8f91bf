"""Whether a culprit's device runs at a lower clock than its peers'.

Fault: a device that is held down for heat or power: its kernels are slow and its work is equal.
Paper: ARGUS (2026), table 6, leaves the clock to people; section 9.5 warns that counters mislead.
So a low clock never accuses a rank: it only tells slow work from more work on a rank that is slow.
Cost: means over a range. Cannot see: a bad chip at its full clock; clocks that nobody reads.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose import stats
from stepscope.diagnose.observed import Observed

LOW = 0.95
"""Of the peers' clock. Devices under one load differ by two or three steps of 15 in 1980 MHz; five
percent is the smallest slowdown that is looked for."""


def relative(seen: Observed, row: int, first: int, stop: int) -> float | None:
    """The mean clock of one rank's device over its peers'; None where it was not read."""
    clocks = seen.hardware("sm_clock_mhz", first, stop)
    usual = stats.median(np.delete(clocks, row))
    if not np.isfinite(clocks[row]) or usual <= 0:
        return None
    return float(clocks[row]) / usual


def is_low(ratio: float | None) -> bool:
    """Whether a device is known to run below its peers."""
    return ratio is not None and ratio < LOW
