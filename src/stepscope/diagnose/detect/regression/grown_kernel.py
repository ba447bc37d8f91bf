"""A kernel that takes longer on all ranks while most others take as long as before.

Fault: a kernel that was replaced, compiled anew, or called with an unlucky shape. More samples or
longer sequences make all kernels of the layers longer, and slower devices all kernels.
Paper: none. ARGUS (2026), section 4.2.3, compares a kernel between ranks; here it is compared with
its own past and with the other kernels.
Cost: one pass over the modes of kernels. Cannot see: what grows in all of a pass's kernels.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.detect.regression.rise import UNCHANGED
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.breakdown import is_computing
from stepscope.diagnose.views.kernel_times import KernelTimes
from stepscope.window import Mask


def grown_kernel(job: Observed, split: int) -> tuple[str, float] | None:
    """The kernel with most of what kernels take longer from a column on, and how many times as long
    it takes; None unless most of the others' time is as before."""
    windows = _windows(job, split)
    if windows is None or job.kernels is None:
        return None
    known = [(one.kernel, *_before_and_growth(one, *windows))
             for one in job.kernels if is_computing(one.kernel)]  # fmt: skip
    known = [one for one in known if one[1] > 0 and np.isfinite(one[2])]
    if len(known) < 2:
        return None
    kernel, usual, growth = max(known, key=lambda one: one[1] * one[2])
    others = [one for one in known if one[0] != kernel]
    as_before = sum(one[1] for one in others if abs(one[2]) <= UNCHANGED * growth)
    grown = sum(one[1] * max(one[2], 0.0) for one in known)
    if usual * growth < HALF * grown or as_before < HALF * sum(one[1] for one in others):
        return None
    return kernel, 1 + growth


def _windows(job: Observed, split: int) -> tuple[Mask, Mask] | None:
    """The windows of kernels that end before a column, and those that begin with it or later."""
    if job.kernels is None:
        return None
    begins, at = job.kernels.begins_ns, job.line.begins_ns[split]
    after = begins >= at
    before = np.append(begins[1:] <= at, False)
    return (before, after) if before.any() and after.any() else None


def _before_and_growth(one: KernelTimes, before: Mask, after: Mask) -> tuple[float, float]:
    """How long the median rank runs a kernel in a window before, and the part by which one of its
    executions takes longer after."""
    usual, later = (stats.median(stats.column_median(one.typical_ns[:, part]))
                    for part in (before, after))  # fmt: skip
    spent = stats.median(stats.column_median((one.count * one.typical_ns)[:, before]))
    return (spent, later / usual - 1) if usual > 0 else (0.0, np.nan)
