"""When hosts retransmitted TCP segments, and whose link lost them.

Most transfers pass a link that loses packets at full speed, and some wait for a timeout: their
usual time says nothing, the mean does. Linux counts the segments that a host sends again
(`tcp_retrans_per_s`). They were lost on its own link or on that of the host it sent them to; which
of the two, the ends of the slowest transfers in a ring tell (`ring_ends`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.network.ring_ends import ends_of_slowest
from stepscope.diagnose.network.transfers import Transfers
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import HALF
from stepscope.window import Floats, Mask

METRIC = "tcp_retrans_per_s"
MANY, TIMES = 20.0, 10.0
"""Segments per second, and times the usual rate: measured on real data, healthy hosts send 1 to 12
per second again, and hosts beside a link that loses one packet in a hundred 150."""
LEAST_HOT = 3
"""Fewer samples are a moment. Statistics."""
ELSEWHERE = 0.02
"""Probability that a host sends segments again for another reason. Our estimate."""


@dataclass(frozen=True)
class PacketLoss:
    """Hosts that retransmit many segments, and in which columns."""

    hosts: tuple[str, ...]
    first: int
    stop: int
    per_second: float


def packet_loss(job: Observed) -> PacketLoss | None:
    """The time in which segments were retransmitted; None if hardly any were."""
    table = job.window.table("hardware")
    if table is None or not table.has("host") or METRIC not in table.strings("metric").values:
        return None
    table = table.take(table.strings("metric").equals(METRIC))
    column, value = job.line.column_at(table.ints("ts_ns")), table.floats("value")
    hosts = table.strings("host")
    judged = (column >= job.line.warm_up) & (hosts.codes >= 0)
    if not judged.any():
        return None
    hot = judged & (value > max(MANY, TIMES * float(np.median(value[judged]))))
    often = np.bincount(hosts.codes[hot], minlength=len(hosts.values))
    found = np.flatnonzero(often >= LEAST_HOT)
    if not found.size:
        return None
    hot &= np.isin(hosts.codes, found)
    first, stop = int(column[hot].min()), int(column[hot].max()) + 1
    inside = (column >= first) & (column < stop) & np.isin(hosts.codes, found)
    if hot[inside].mean() < HALF:
        return None
    names = tuple(hosts.values[code] for code in found.tolist())
    return PacketLoss(names, first, stop, float(value[inside].mean()))


def whose_link(moved: Transfers, lost: PacketLoss, now: Mask) -> tuple[list[str], Floats]:
    """The hosts, each with the probability that its link lost the segments."""
    beside = {frozenset(two) for two in _neighbours(moved)}
    names = sorted(set().union(*beside)) if beside else []
    weight = ends_of_slowest(moved, now)
    log = np.array([weight.get(name, 0.0) + sum(
        0.0 if name == one or frozenset((name, one)) in beside else np.log(ELSEWHERE)
        for one in lost.hosts) for name in names])  # fmt: skip
    chance = np.exp(log - log.max()) if names else log
    return names, chance / chance.sum() if names else chance


def _neighbours(moved: Transfers) -> Iterator[tuple[str, str]]:
    """Hosts that send to each other: next to each other in rings, or in pairs."""
    for at in np.flatnonzero(moved.between).tolist():
        hosts = moved.hosts[at]
        yield from ((one, other) for one, other in zip(hosts, (*hosts[1:], hosts[0]), strict=True)
                    if one != other)  # fmt: skip
