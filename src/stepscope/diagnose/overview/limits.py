"""What limits an average step besides compute: communication, copies, or a late host.

Traces say all of it. Other jobs show only what is not the ranks' own time: transfers, and waiting
for one another, which is communication, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Literal

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.shown import Limit, RankTime
from stepscope.diagnose.views.unnamed import is_staged

Part = Literal["exposed_ns", "copy_ns", "host_wait_ns", "kernel_wait_ns", "other_ns"]
PARTS: tuple[Part, ...] = ("exposed_ns", "copy_ns", "host_wait_ns", "kernel_wait_ns", "other_ns")
NOTABLE_SHARE = 0.25
"""Share of a step that is worth a sentence; profiling itself delays the host a little. Our
simulator."""


def limits(job: Observed, times: Sequence[RankTime]) -> tuple[Limit, ...]:
    """Parts that take a quarter or more of an average step on the median rank, largest first."""
    return by_times(times) if times else _communicating(job)


def by_times(times: Sequence[RankTime]) -> tuple[Limit, ...]:
    """The same by where the ranks' time went."""
    if not times:
        return ()
    medians: Mapping[Part, float] = {
        part: median(getattr(time, part) for time in times) for part in PARTS
    }
    whole = sum(medians.values()) + median(time.compute_ns for time in times)
    notable = [Limit(part, value / whole) for part, value in medians.items()
               if whole > 0 and value >= NOTABLE_SHARE * whole]  # fmt: skip
    return tuple(sorted(notable, key=lambda one: -one.share))


def _communicating(job: Observed) -> tuple[Limit, ...]:
    """The part of the steps that is no rank's own, where all own time is known; pipelines have
    bubbles besides."""
    line = job.line
    if not job.own.phases or job.own.hidden or job.own.skipped or is_staged(job.window):
        return ()
    known = np.where(line.period_ns > 0, line.period_ns, np.nan)
    share = stats.median(1.0 - (job.total / known)[:, line.warm_up :])
    communicates = "comm_ops" in job.window.tables or job.own.marked
    return (Limit("exposed_ns", share),) if communicates and share >= NOTABLE_SHARE else ()
