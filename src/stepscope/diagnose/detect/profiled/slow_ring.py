"""Links that hold up a ring, by how steadily ranks use their adapters in one collective.

Fault: an adapter, a cable or NVLink of a few ranks that moves data slower than the others.
Paper: EROICA (2026), section 3, figures 3 to 5, and appendix A, figure 19. In a ring with a slow
link all ranks move less on average. Those that wait for the link alternate between all and nothing
(large sigma); the link itself is steadily slow (small sigma). A rank that lost NVLink uses PCIe
more than its peers. A large beta of a collective is no reason to blame anybody: who waits has it.
What differs: the paper leaves the last step to the reader of its figures.
Cost: medians over ranks. Cannot see: a ring of which all links are slow; collectives without a
counter of their traffic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.thresholds import FALSE_ALARMS
from stepscope.diagnose.views.patterns import LEAST_BETA, Patterns
from stepscope.window import Floats, Ints, Mask

LESS = 0.8
"""Of the usual use of an adapter: what is above is the scatter of counters. Our simulator."""
MORE = 1.5
"""Times the usual use of PCIe where traffic lost NVLink. In figure 19 it is twice. Paper."""
WAITING = 0.5
"""Deviation over mean from which traffic stops and goes: a fifth of the time idle. Statistics."""
STEADY = 0.67
"""Part of its peers' deviation over mean: a link that waits for no other. In figure 5 it is less
than a third, where the link is slow all the time. Our choice."""
FASTER = 1.1
"""Times the usual use of an adapter: more is the scatter of no counter. Our simulator."""
NOISE = 0.03
"""Relative noise of a counter, at least. Our choice."""
FEW = 0.25
"""Part of the ranks that may be at fault at once; more are a group's role. Our choice."""
FEWEST = 4
"""With fewer ranks it is unknown what is usual. Our choice."""


@dataclass(frozen=True)
class SlowEnd:
    """Ranks whose end of a link is slow in one collective."""

    function: int
    rows: tuple[int, ...]
    times: float
    """How many times less they move than usual, or than they could."""
    loss: float
    """Share of the window that the others lose."""
    detour: bool
    """Whether they use PCIe more than the others, because NVLink is lost."""
    detail: str


def slow_ends(patterns: Patterns) -> Iterator[SlowEnd]:
    """The slow ends of links in every collective."""
    for at in patterns.at("collective").tolist():
        known = np.isfinite(patterns.mu[at]) & np.isfinite(patterns.sigma[at])
        known &= patterns.beta[at] >= LEAST_BETA
        rows = np.flatnonzero(known & (patterns.mu[at] > 0))
        if rows.size >= FEWEST:
            found = _detour(patterns, at, rows) or _slow(patterns, at, rows)
            if found is not None:
                yield found


def _slow(patterns: Patterns, at: int, rows: Ints) -> SlowEnd | None:
    mu, beta = patterns.mu[at, rows], patterns.beta[at, rows]
    unsteady = patterns.sigma[at, rows] / mu
    low: Mask = (mu <= LESS * stats.median(mu)) & (_sigmas(mu) < -_needed(rows))
    if not low.any() or low.mean() > 0.5:
        return _steady_among_waiting(patterns, at, rows, unsteady, beta)
    members = np.flatnonzero(low)
    usual = stats.median(unsteady[members]) if members.size > 1 else 0.0
    calm = members[unsteady[members] <= STEADY * usual]
    least = mu[members].min()
    lowest = members[mu[members] <= least / LESS]
    # a ring of which one link is slow, or that link alone
    culprits = calm if calm.size else lowest
    if culprits.size > max(FEW * rows.size, 1):
        return None
    usual = stats.median(mu[~low])
    times = usual / max(float(mu[culprits].min()), 1e-9)
    loss = stats.median(beta[members]) * (1 - 1 / times)
    steady = ", and steadily so" if calm.size else ""
    detail = f"{times:.1f} times less traffic on the adapter than on peers{steady}"
    return SlowEnd(at, tuple(rows[culprits].tolist()), times, loss, False, detail)


def _steady_among_waiting(
    patterns: Patterns, at: int, rows: Ints, unsteady: Floats, beta: Floats
) -> SlowEnd | None:
    """The steady ranks of a ring in which most ranks stop and go."""
    usual = stats.median(unsteady)
    if usual < WAITING:
        return None
    calm = (unsteady <= STEADY * usual) & (_sigmas(unsteady) < -_needed(rows))
    # a ring without a slow link is steady, too, but faster
    calm &= patterns.mu[at, rows] <= FASTER * stats.median(patterns.mu[at, rows])
    if not calm.any() or calm.sum() > max(FEW * rows.size, 1):
        return None
    # traffic that is on for a part d of the time has sigma/mu = sqrt((1 - d) / d)
    times = 1 + usual**2
    loss = stats.median(beta[~calm]) * (1 - 1 / times)
    detail = "steady traffic while all others stop and go: the others wait for this end"
    return SlowEnd(at, tuple(rows[np.flatnonzero(calm)].tolist()), times, loss, False, detail)


def _detour(patterns: Patterns, at: int, rows: Ints) -> SlowEnd | None:
    """Ranks that use PCIe more than their peers: what went through NVLink goes there now."""
    if patterns.functions[at].resource != "pcie":
        return None
    mu, beta = patterns.mu[at, rows], patterns.beta[at, rows]
    high = (mu >= MORE * stats.median(mu)) & (_sigmas(mu) > _needed(rows))
    if not high.any() or high.sum() > max(FEW * rows.size, 1):
        return None
    longer = stats.median(beta[high]) / max(float(np.quantile(beta, 0.25)), LEAST_BETA)
    if longer <= 1:
        return None
    times = float(stats.median(mu[high]) / stats.median(mu))
    loss = stats.median(beta[high]) * (1 - 1 / longer)
    detail = f"{times:.1f} times as much traffic through PCIe as on peers: NVLink is lost"
    return SlowEnd(at, tuple(rows[np.flatnonzero(high)].tolist()), longer, loss, True, detail)


def _sigmas(values: Floats) -> Floats:
    """Distance of each logarithm from the median, in units of the robust scatter."""
    logs = np.log(np.maximum(values, 1e-9))
    apart: Floats = logs - stats.median(logs)
    return apart / max(stats.MAD_TO_SIGMA * stats.median(np.abs(apart)), NOISE)


def _needed(rows: Ints) -> float:
    return stats.threshold(FALSE_ALARMS, 2 * rows.size, int(stats.MAD_EFFICIENCY * rows.size))
