"""Whether a rise that all ranks seem to share is an after-effect of a culprit that was found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.diagnose.finding import Finding, Regression, SlowLink, Span
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect

MOSTLY = 0.5
"""A culprit that is slow for half of a rise accounts for most of what it costs. Our simulator."""


def is_after_effect(
    job: Observed,
    rise: Regression,
    culprits: Sequence[Suspect],
    beside: Sequence[Finding],
) -> bool:
    """Whether a culprit was slow for most of a rise that has no measured cause of its own.

    A rank that is starved of its processor is also slow in its part of each transfer, which lasts
    longer for all: one cause, and one verdict. The same holds for a rank found by kernels alone,
    because it is not known what each step would take without it. And ranks that a slow link holds
    up make others wait in their own transfers, which then seem to be slow everywhere.

    Args:
        beside: other findings that deserve a verdict; links count only beside a slow network.
    """
    if rise.measured or rise.split is None:
        return False
    others = [one for one in beside if not _is_link(one) or rise.cause == "network"]
    slow = max((stop - first for first, stop in _stretches(job, culprits, others)), default=0)
    return slow >= MOSTLY * (len(job.line.steps) - rise.split)


def _is_link(one: Finding) -> bool:
    return isinstance(one, SlowLink) and not one.kernels


def _stretches(job: Observed, culprits: Sequence[Suspect], others: Sequence[Finding]) -> list[Span]:
    """The columns of culprits, and of findings that have no row of the grid."""
    steps = [one.steps for one in others if one.steps is not None]
    ends = job.line.columns(np.array(steps, np.int64).ravel()).reshape(-1, 2)
    own = [(one.first, one.stop) for one in culprits]
    return own + [(first, last + 1) for first, last in ends.tolist()]
