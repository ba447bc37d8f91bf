"""What a rank's main thread did with its excess: computed, waited for a CPU, or slept.

Fault: a host that computes more, or does not get the processor, or stands still.
Paper: ARGUS (2026), table 6, tells CPU contention by "all phases of affected rank slow"; EROICA
(2026), section 4, by utilisation. Here the processor time of each phase and the scheduler's own
account of waiting (`run_delay`) are measured. Only the difference to the peers counts: on an
oversubscribed host everybody waits for a processor.
Cost: means over a range. Cannot see: time a GPU takes; without `cpu_ns` nothing is said.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.diagnose import stats
from stepscope.diagnose.blame import Culprit, peers
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.routing import comparison_groups
from stepscope.window import Floats

COMPUTES = 0.4
"""Part of the excess that must be processor time: on a busy machine a computing rank itself waits
for the processor for up to half of the time it computes longer."""
STARVED = 0.4
"""Part of the excess that must be waiting for a processor; the rest is what sampling misses."""
STRANGERS = 0.25
"""Cores taken by strangers on a rank's processors before they are called the reason."""


@dataclass(frozen=True)
class Use:
    """Parts of a culprit's excess, 0 to 1; None where not measured."""

    computed: float | None
    starved: float | None
    strangers: float | None


def use_of_excess(seen: Observed, culprit: Culprit) -> Use:
    """How the culprit spent what it took longer than its peers."""
    return Use(_computed(seen, culprit), _starved(seen, culprit), _strangers(seen, culprit))


def _computed(seen: Observed, one: Culprit) -> float | None:
    if seen.processor is None or one.excess_ns <= 0:
        return None
    groups = comparison_groups(seen.window, one.phase)
    extra = seen.processor[one.row] - peers(seen.processor, groups, one.row)
    extra = extra[one.first : one.stop]
    if not np.isfinite(extra).any():
        return None
    return float(stats.block_means(extra[None], len(extra))[0, 0]) / one.excess_ns


def _starved(seen: Observed, one: Culprit) -> float | None:
    """Extra share of time spent runnable but not running, times the step, of the excess."""
    delay = seen.hardware("run_delay", one.first, one.stop)
    extra = _above_peers(delay, one.row)
    if extra is None or one.excess_ns <= 0:
        return None
    return extra * seen.line.typical_ns / one.excess_ns


def _above_peers(values: Floats, row: int) -> float | None:
    others = np.delete(values, row)
    if not np.isfinite(values[row]) or not np.isfinite(others).any():
        return None
    return float(values[row]) - stats.median(others)


def _strangers(seen: Observed, one: Culprit) -> float | None:
    value = float(seen.hardware("stranger_cpu_util", one.first, one.stop)[one.row])
    return value if np.isfinite(value) else None
