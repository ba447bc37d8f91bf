"""Slow adapters, cables and switches of a job whose operators have no times, by requests alone.

Fault: an adapter, cable or switch that moves data slowly, where operators are calls without ends.
Paper: VenusTrace (Jiao et al., 2025), section 3.2.2: the requests of a slow path stay outstanding.
Ours: in step after step the connections over a slow device are busier than their equals
(`network.busiest`). How much likelier that is than by chance is the evidence for each device at
either end, as in `outstanding`; an adapter that its rank does not use any more counts as in
`slow_link`. Cost: how much longer steps are since then, else by how much it is busier.
Cost of computing: one sort of `transfers`. Cannot see: what is slow between all hosts, or within
one; bubbles that swallow it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect.links.slow_link import TELLING, ranks_behind, suspects_of
from stepscope.diagnose.finding import Device, SlowLink
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.network.busiest import Equals, Often, equal_connections
from stepscope.diagnose.network.delay import LEAST_CALM
from stepscope.diagnose.network.likelihood import PRIOR
from stepscope.diagnose.network.outstanding import OutstandingEvidence
from stepscope.diagnose.network.topology import PathDevice, Topology
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import SCORE
from stepscope.diagnose.words.advice import list_ranks
from stepscope.window import Floats, Ints, Mask

LEAST_LIKELY = 0.1
"""Devices below it are not named, as in `network.LEAST_NAMED`."""


class BusiestConnections:
    """Network devices whose connections are always the busiest of their equals."""

    name = "busiest-connections"
    needs = Needs("transfers.peer", "transfers.posted", "transfers.completed", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[SlowLink]:
        if job.sees_devices or not len(job.line.steps):
            return
        found = _find(job, list(equal_connections(job)))
        guilty = {int(job.line.ranks[one.row]) for one in so_far.culprits}
        if found is not None and not set(found.ranks) & guilty:
            yield _finding(job, found)


@dataclass(frozen=True)
class _Busiest:
    suspects: tuple[tuple[PathDevice, float], ...]
    ranks: tuple[int, ...]
    columns: Ints
    """The steps in which its connections are the busiest."""
    steps: int
    """In which some connection of their equals is."""
    more_ns: float
    """By how much they are busier than the typical ones, per step."""


def _find(job: Observed, classes: list[Equals]) -> _Busiest | None:
    if not classes:
        return None
    often = Often.of(classes)
    if not often.certain.any():
        return None
    topology = Topology(job.window)
    evidence = OutstandingEvidence(
        often.source, often.target, often.log_ratios, np.zeros(len(often.times))
    )
    ends = np.unique(np.concatenate((often.source, often.target))).tolist()
    devices = list(dict.fromkeys(one for rank in ends for one in topology.outwards(rank)))
    chance = _chances(devices, evidence.log_ratios(devices, topology), topology)
    suspects = suspects_of(devices, chance)
    behind = suspects[0][0].ranks
    through = often.certain & (np.isin(often.source, behind) | np.isin(often.target, behind))
    if not through.any():
        return None
    parts = np.split(through, np.cumsum([len(one.source) for one in classes])[:-1])
    return _Busiest(suspects, ranks_behind(job, devices, chance), *_when(classes, parts))


def _chances(devices: list[PathDevice], ratios: Floats, topology: Topology) -> Floats:
    """The probability of each device, given that one of them is to blame."""
    left = set(topology.abandoned.values())
    log = ratios + [math.log(PRIOR[one.kind] * (TELLING if one.name in left else 1))
                    for one in devices]  # fmt: skip
    weight = np.exp(log - log.max())
    return np.asarray(weight / weight.sum())


def _when(classes: list[Equals], through: list[Mask]) -> tuple[Ints, int, float]:
    """The steps in which some of these connections are the busiest, the number of those in which
    any are, and by how much they are busier than the typical one."""
    used = [(one, mask) for one, mask in zip(classes, through, strict=True) if mask.any()]
    columns = np.flatnonzero(np.any([one.busiest[mask].any(axis=0) for one, mask in used], axis=0))
    unequal = np.any([one.unequal for one, _ in used], axis=0)
    more = max(float((one.busy_ns[mask].max(axis=0) - np.median(one.busy_ns, axis=0))[columns]
                     .mean()) for one, mask in used)  # fmt: skip
    return columns, int(unequal.sum()), more


def _finding(job: Observed, found: _Busiest) -> SlowLink:
    line = job.line
    first, stop = _begin(found.columns, line.warm_up, len(line.steps)), int(found.columns[-1]) + 1
    columns = found.columns[found.columns >= first]
    judged = np.arange(len(line.steps))
    calm = (judged >= line.warm_up) & ((judged < first) | (judged >= stop))
    period = line.job_period_ns
    lasted = stats.trimmed_mean(period[first:stop])  # without checkpoints, and other people's
    usual = stats.median(period[calm]) if calm.sum() >= LEAST_CALM else lasted - found.more_ns
    lost_ns = max(lasted - usual, 0.0)
    victims = len(job.window.ranks) - len(found.ranks)
    where = _where(found)
    detail = (
        f"network requests of the connections {where} may be outstanding for longer than those of "
        f"equal ones in {len(columns)} of {found.steps} steps, by {found.more_ns / 1e6:.1f} ms"
    )
    return SlowLink(
        method="busiest-connections", cause="network", detail=detail, ranks=found.ranks,
        devices=tuple(_devices(found)), steps=line.span(first, stop),
        time_ns=line.span_ns(first, stop), slowdown=lasted / max(usual, 1.0), lost_ns=lost_ns,
        score=min(SCORE + 0.01 * len(columns), 0.98), where=f"{where} than elsewhere or before",
        lost_fraction=min(lost_ns / max(lasted, 1.0), 1.0), columns=tuple(range(first, stop)),
        victims=victims, values={"busier_ns": found.more_ns, "steps": found.steps},
    )  # fmt: skip


def _begin(columns: Ints, since: int, stop: int) -> int:
    """The column from which its connections are the busiest more often than before; the first of
    these columns where nothing changes beyond chance."""
    busiest = np.zeros(stop - since)
    busiest[columns - since] = 1
    before = np.arange(1, len(busiest))
    times = np.cumsum(busiest)[:-1]
    gain = _entropy(times, before) + _entropy(busiest.sum() - times, len(busiest) - before)
    gain -= _entropy(busiest.sum(), np.array(len(busiest)))
    more = times / before < (busiest.sum() - times) / (len(busiest) - before)
    at = int(np.argmax(np.where(more, gain, 0.0))) if len(gain) else 0
    if not len(gain) or gain[at] < math.log(len(busiest)):
        return int(columns[0])
    return int(columns[columns >= since + before[at]][0])


def _entropy(times: Floats, trials: Ints) -> Floats:
    """The log-likelihood of so many events in so many trials at their own rate."""
    rate = np.clip(times / trials, 1e-9, 1 - 1e-9)
    return np.asarray(times * np.log(rate) + (trials - times) * np.log1p(-rate))


def _where(found: _Busiest) -> str:
    device, chance = found.suspects[0]
    if chance >= 0.5:
        return f"through {device.name}"
    return f"of {list_ranks(found.ranks or device.ranks)}"


def _devices(found: _Busiest) -> Iterator[Device]:
    for one, chance in found.suspects:
        if chance >= LEAST_LIKELY and one.kind in ("nic", "link", "pcie", "switch"):
            yield Device(one.kind, one.name, round(chance, 3))
