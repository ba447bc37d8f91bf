"""Which device explains slow places: a likelihood ratio that accounts for exposure.

Paper: Holmes (Yao et al., 2025, section 4.4 and appendix D) adds up the irregularity of all
operators that pass a device and damps it by the device's connections; with that, a bad spine was
found in none of 100 trials. Here places that pass a device and are *not* slow count against it
(algorithm notes, section 3: leaf pairs, spines and adapters found in 100 of 100).

    score(d, step) = sum over places through d of  log P(obs | d is slow) / P(obs | it is not)
    probability(d) ~ prior(d) * exp(sum of the positive scores of d over the steps)

Cost: places times devices on their paths times steps in which anything was slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.network.topology import Hop, Kind, PathDevice
from stepscope.window import Floats, Ints, Mask

STRAY = 0.01
"""Probability that a place is slow in a step without a slow device. Our simulator."""
MOST_STEPS = 10
"""More steps than this add no information, because errors of our model of the paths repeat in each
step. Our simulator."""
PRIOR: Mapping[Kind, float] = {
    "link": 2.0, "nic": 1.0, "switch": 1.0, "nvlink": 1.0, "pcie": 0.5, "unknown": 1.0,
    "fabric": 1.0, "edge": 0.1, "lane": 1.0, "distance": 0.1, "host": 0.1,
}  # fmt: skip
"""Prior weights. Holmes, section 3.1, lists four causes between machines, without their shares:
fabric problems, flapping links, failed links and adapters; so two of four are links. It does not
list PCIe. Paper. What lies between is as unlikely as in `slow_hosts`, and so is what all adapters
of a host share; within a host it is as likely as the end at either rank. Our choice."""
CHUNK = 1 << 22
"""Cells that are scored at a time: 32 MB."""


@dataclass(frozen=True)
class Cells:
    """`[place, step]`: where transfers were observed, and where they were slow."""

    known: Mask
    slow: Mask
    brief: Mask
    """`[step]`: where only single transfers were slow."""


@dataclass(frozen=True)
class Paths:
    """Which devices each place uses, one entry per device and place, sorted by device."""

    devices: Sequence[PathDevice]
    device: Ints
    place: Ints
    chance: Floats

    @classmethod
    def of(cls, by_place: Sequence[Sequence[Hop]]) -> Paths:
        """The paths of all places."""
        numbers: dict[PathDevice, int] = {}
        rows = [(numbers.setdefault(device, len(numbers)), at, chance)
                for at, hops in enumerate(by_place) for device, chance in hops]  # fmt: skip
        table = np.array(sorted(rows), np.float64).reshape(-1, 3)
        return cls(tuple(numbers), table[:, 0].astype(np.int64), table[:, 1].astype(np.int64),
                   table[:, 2])  # fmt: skip

    def places_of(self, devices: Sequence[int]) -> Ints:
        """The places that use one of these devices."""
        return np.unique(self.place[np.isin(self.device, devices)])

    def begins(self) -> Ints:
        return np.flatnonzero(np.diff(self.device, prepend=-1))


@dataclass(frozen=True)
class DeviceScores:
    """How well each device explains the slow places."""

    scores: Floats
    """`[device, step]`: above zero where the device is likely to have been slow."""

    @property
    def total(self) -> Floats:
        """Log-likelihood ratio of each device to "nothing is wrong"."""
        active = np.maximum(self.scores, 0.0)
        steps = max(int((self.scores > 0).sum(axis=1).max(initial=0)), 1)
        return np.asarray(active.sum(axis=1) * min(1.0, MOST_STEPS / steps))


def score_devices(paths: Paths, cells: Cells) -> DeviceScores:
    """Scores of all devices in all steps."""
    steps = np.flatnonzero(cells.slow.any(axis=0))
    scores = np.zeros((len(paths.devices), cells.slow.shape[1]))
    begins = paths.begins()
    chunk = max(CHUNK // max(paths.device.size, 1), 1)
    for first in range(0, steps.size, chunk):
        at = steps[first : first + chunk]
        scores[:, at] = np.add.reduceat(_ratios(paths, cells, at), begins, axis=0)
    return DeviceScores(scores)


def _ratios(paths: Paths, cells: Cells, steps: Ints) -> Floats:
    """Log-likelihood ratio of each device and place in each of the steps.

    A fault that delays a single transfer affects one of the places that use the device, no other.
    """
    places = np.bincount(paths.device, minlength=len(paths.devices))[paths.device]
    chance = np.where(cells.brief[steps], (paths.chance / places)[:, None], paths.chance[:, None])
    hit = np.log((chance + (1 - chance) * STRAY) / STRAY)
    missed = np.log(1 - chance)
    at = np.ix_(paths.place, steps)
    return np.where(cells.known[at], np.where(cells.slow[at], hit, missed), 0.0)


def probabilities(paths: Paths, scored: DeviceScores, evidence: Floats) -> Floats:
    """The probability of each device, given that one of them is to blame.

    Args:
        evidence: log-likelihood ratios of each device by other evidence.
    """
    log = scored.total + np.log([PRIOR[one.kind] for one in paths.devices]) + evidence
    weight = np.exp(log - log.max())
    return np.asarray(weight / weight.sum())
