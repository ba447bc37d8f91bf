"""Every rank's time against the median of its peers, step by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.window import Floats, Ints


def above_peers(values: Floats, groups: Sequence[Ints]) -> Floats:
    """How far every value lies above the median of the others of its group; NaN if unknown.

    Args:
        values: `[rank, step]`.
        groups: rows of ranks that do equal work.
    """
    found = np.full(values.shape, np.nan)
    for size in sorted({len(group) for group in groups}):
        members = np.stack([group for group in groups if len(group) == size])
        part = values[members]
        found[members] = part - stats.leave_one_out_median(part)
    return found


def relative(values: Floats, row: int, group: Ints) -> float | None:
    """A rank's value over the median of its peers; None where unknown.

    Args:
        group: rows of the peers; may contain the rank's own.
    """
    usual = stats.median(values[group[group != row]])
    if not np.isfinite(values[row]) or usual <= 0:
        return None
    return float(values[row]) / usual
