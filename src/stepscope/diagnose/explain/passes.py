"""Which parts of a step a suspect's device is slow in: its passes alone, or all that it does.

Fault: a replica whose samples are longer than the others', as opposed to slow devices.
Paper: EROICA (2026), section 6.2, finds load imbalance by people comparing input sizes; ARGUS
(2026), section 9.3, reports work that differs by two to three times between samples.
What differs (blame rule 5): more samples lengthen both passes alike and leave the optimizer, whose
work depends on the model only, as it is. A slow device is slow in the optimizer as well.
Cost: means over a range. Cannot see: a device whose matrix units alone are bad, which looks like
more samples; so one rank of several that share their samples is never said to have more.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.finding import Extent
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.trace import BACKWARD, FORWARD, OPTIMIZER

ALIKE = 2.0
"""Largest ratio between the excess ratios of the two passes: attention grows faster than the rest
of the work with the length of samples, in both passes. Our simulator."""
LEAST = 0.03
"""A pass with a smaller excess ratio is not slower. Our simulator."""
MOST = 3.0
"""Section 9.3 of ARGUS: samples differ by two to three times between extremes. Paper."""
UNTOUCHED, TOUCHED = 0.25, 0.5
"""Parts of the passes' excess ratio: below the first the optimizer is as fast as usual, above the
second it is slow like the passes. Our simulator."""


def extent(job: Observed, one: Suspect) -> Extent:
    """The parts of a step that a suspect is slow in; `some` where the phases do not show it."""
    forward, backward, rest = (_ratio(job, one, name) for name in (FORWARD, BACKWARD, OPTIMIZER))
    if forward is None or backward is None or rest is None:
        return "some"
    low, high = sorted((forward - 1, backward - 1))
    if low < LEAST or high > ALIKE * low:
        return "some"
    if rest - 1 >= TOUCHED * low:
        return "everything"
    return "passes" if rest - 1 <= UNTOUCHED * low and high <= MOST - 1 else "some"


def _ratio(job: Observed, one: Suspect, phase: str) -> float | None:
    """The culprit's own time in a phase over its peers', where both are known."""
    if phase not in job.own.phases:
        return None
    own = job.own.of(phase)
    usual = job.peer_median(own, phase, one.row)
    part = slice(one.first, one.stop)
    width = one.stop - one.first
    own_ns = float(stats.block_means(own[one.row, part][None], width)[0, 0])
    peers_ns = float(stats.block_means(usual[part][None], width)[0, 0])
    return own_ns / peers_ns if np.isfinite(own_ns) and peers_ns > 0 else None
