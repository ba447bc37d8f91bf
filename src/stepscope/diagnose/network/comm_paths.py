"""The paths of a job's operators between adapters, and which devices explain the slow ones.

A group over several hosts is a ring: each member sends to the next. Members of one host exchange
data inside it. Devices are weighed by `exposure`, with the shares of Holmes' table 1 as prior.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from stepscope.diagnose.network.edges import Place
from stepscope.diagnose.network.exposure import (
    Connections,
    Fabric,
    PathSums,
    log_ratios,
    posterior,
)
from stepscope.diagnose.network.topology import PathDevice, Topology
from stepscope.window import Floats, Ints, Mask, Window

PRIOR_NIC, PRIOR_LINK, PRIOR_SWITCH = 0.183, 0.095, 0.048
"""Shares of the types among 126 anomalous devices. Holmes, table 1. Paper."""
CLEAR = 0.6
"""Ranks are named if they alone are behind devices with this probability, as in `slow_link`. Our
simulator."""
NAMED = 5
"""Number of suspects that are kept. Our choice."""


@dataclass(frozen=True)
class Suspect:
    """A device, how likely it is, and how many of its paths were slow."""

    device: PathDevice
    probability: float
    slow: float
    paths: float


@dataclass(frozen=True)
class CommPaths:
    """All paths of a job's places. Adapters are known by name, else each rank has its own."""

    window: Window
    places: Sequence[Place]

    @cached_property
    def topology(self) -> Topology:
        return Topology(self.window)

    @cached_property
    def _nics(self) -> dict[int, PathDevice]:
        """The adapter of each rank that has one, or its unknown connection."""
        found = {}
        for rank in sorted({rank for place in self.places for rank in place.members}):
            hops = self.topology.outwards(rank)
            found[rank] = next((one for one in hops if one.kind in ("nic", "unknown")), None)
        return {rank: one for rank, one in found.items() if one is not None}

    @cached_property
    def _numbers(self) -> tuple[dict[int, int], list[PathDevice]]:
        """The number of each rank's adapter, and the adapters."""
        numbers: dict[str, int] = {}
        devices: list[PathDevice] = []
        of_rank = {}
        for rank, one in self._nics.items():
            if one.name not in numbers:
                numbers[one.name] = len(devices)
                devices.append(one)
            of_rank[rank] = numbers[one.name]
        return of_rank, devices

    @cached_property
    def _leaves(self) -> tuple[list[PathDevice], Ints]:
        """The leaf switches, and the number of each adapter's leaf; -1: unknown."""
        numbers: dict[PathDevice, int] = {}
        leaf_of = []
        for one in self._numbers[1]:
            hops = self.topology.outwards(one.ranks[0]) if one.ranks else ()
            leaf = next((hop for hop in hops if hop.kind == "switch"), None)
            leaf_of.append(-1 if leaf is None else numbers.setdefault(leaf, len(numbers)))
        return list(numbers), np.array(leaf_of, np.int64)

    @cached_property
    def _paths(self) -> tuple[Connections, Ints]:
        """The connections between hosts, and the place of each."""
        of_rank = self._numbers[0]
        rows = [(of_rank[first], of_rank[second], at)
                for at, place in enumerate(self.places)
                for first, second in self._edges(place)]  # fmt: skip
        table = np.array(rows, np.int64).reshape(-1, 3)
        leaves, leaf_of = self._leaves
        fabric = Fabric(leaf_of, len(leaves), 0)
        spine = np.full(len(table), -1)
        return Connections(fabric, table[:, 0], table[:, 1], spine), table[:, 2]

    def _edges(self, place: Place) -> Iterator[tuple[int, int]]:
        """Neighbours of a ring that are on different hosts."""
        ring = place.members
        ring = (*ring, ring[0]) if len(ring) > 2 else ring
        known = self._numbers[0]
        for first, second in pairwise(ring):
            apart = self.window.host_of(first) != self.window.host_of(second)
            if apart and first in known and second in known:
                yield first, second

    def suspects(self, slow: Mask, known: Mask) -> tuple[Suspect, ...]:
        """The devices that explain slow places best, the likeliest first.

        Args:
            slow: `[place, step]`.
            known: where a place moved data at all.
        """
        connections, place = self._paths
        if not place.size:
            return ()
        bad = connections.sums(slow.sum(axis=1).astype(np.float64)[place])
        every = connections.sums(known.sum(axis=1).astype(np.float64)[place])
        return tuple(_ranked(self._devices, _table(bad), _table(every)))

    @cached_property
    def _devices(self) -> tuple[list[PathDevice], Floats]:
        """Every device of `_table` in its order, and its prior."""
        nics, (leaves, leaf_of) = self._numbers[1], self._leaves
        links = [PathDevice("link", f"{nic.name}--{leaves[leaf].name}", nic.ranks)
                 if leaf >= 0 and nic.kind == "nic" else nic
                 for nic, leaf in zip(nics, leaf_of.tolist(), strict=True)]  # fmt: skip
        prior = [PRIOR_NIC] * len(nics) + [PRIOR_LINK] * len(nics) + [PRIOR_SWITCH] * len(leaves)
        return [*nics, *links, *leaves], np.array(prior)


def _table(sums: PathSums) -> Floats:
    """Adapters, their links, and leaves."""
    return np.concatenate((sums.by_nic, sums.by_nic, sums.by_leaf))


def _ranked(devices: tuple[list[PathDevice], Floats], bad: Floats, every: Floats
            ) -> Iterator[Suspect]:  # fmt: skip
    named, prior = devices
    chance = posterior(log_ratios(bad, every), prior)
    order = [at for at in np.argsort(-chance, kind="stable").tolist() if every[at] > 0]
    for at in order[:NAMED]:
        yield Suspect(named[at], float(chance[at]), float(bad[at]), float(every[at]))


def clear_ranks(suspects: Sequence[Suspect], ranks: int) -> tuple[int, ...]:
    """The ranks behind the likeliest devices, if that is clear and these are not all ranks."""
    behind: dict[tuple[int, ...], float] = {}
    for one in suspects:
        behind[one.device.ranks] = behind.get(one.device.ranks, 0.0) + one.probability
    best = max(behind, key=lambda one: behind[one], default=())
    return best if best and behind[best] >= CLEAR and len(best) < ranks else ()
