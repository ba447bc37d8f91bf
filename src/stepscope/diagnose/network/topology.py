"""Which devices may carry a place's data: the ways that `job.json` and counters tell of.

Within a host data goes over NVLink where counters show it, else nobody knows. Between hosts each
member of a group sends through its PCIe, its adapter, the cable to its leaf and the leaf; between
leaves through one of the switches above, nobody knows which. How an operator is really routed is
the communication library's secret, so that a way has a chance: how likely a place suffers if the
device is slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np

from stepscope.diagnose.network.devices import Devices
from stepscope.diagnose.network.edges import Place
from stepscope.diagnose.network.rerouted import adapters_left
from stepscope.window import Ints, Mask, Window

Kind = Literal["nic", "link", "switch", "nvlink", "pcie", "unknown", "fabric"]

SUFFERS = 0.9
"""A ring is as fast as its slowest edge, so who uses a slow device is slow, but for a detour."""
BESIDE = 0.3
"""Within hosts data moves several times as fast as between them: a group over several hosts suffers
from a slow NVLink only if that has become the slowest of all."""
ALMOST = 0.99
"""Of what crosses leaves under one switch above them."""
PARTLY = 0.75
"""Of what all hosts suffer each gets another share."""


@dataclass(frozen=True)
class PathDevice:
    """A device and the ranks behind it. `unknown` has a description for a name; `fabric` is all
    that lies between the hosts."""

    kind: Kind
    name: str
    ranks: tuple[int, ...]
    part: float = 1.0
    """Of the connections of its ranks to other hosts (other leaves, if below 1) that pass it."""

    def __hash__(self) -> int:
        return hash((self.kind, self.name, self.ranks[:1]))  # a leaf has hundreds of ranks


Hop = tuple[PathDevice, float]
"""A carrier, and how likely a place suffers if it is slow."""


@dataclass(frozen=True)
class Topology:
    """The ways of a job."""

    window: Window

    def hops(self, place: Place) -> list[Hop]:
        """Every carrier of a place's data once."""
        chances: dict[PathDevice, float] = {}
        for device, chance in self._hops(place):
            chances[device] = max(chances.get(device, 0.0), chance)
        return list(chances.items())

    def crosses_leaves(self, place: Place) -> int:
        """How many leaves a place lies under; 0 where the fabric is unknown."""
        return len({leaf for rank in place.members if (leaf := self._leaf(rank))})

    def between_leaves(self, source: Ints, target: Ints) -> Mask:
        """Which connections between ranks leave their leaf; none where leaves are unknown."""
        leaves: dict[str | None, int] = {None: -1}
        ranks = np.unique(np.concatenate((source, target)))
        number = [leaves.setdefault(self._leaf(rank), len(leaves)) for rank in ranks.tolist()]
        here, there = (np.array(number, np.int64)[np.searchsorted(ranks, one)]
                       for one in (source, target))  # fmt: skip
        crosses: Mask = (here != there) & (here >= 0) & (there >= 0)
        return crosses

    def _hops(self, place: Place) -> Iterator[Hop]:
        hosts = [self._devices.host(rank) for rank in place.members]
        if len(set(hosts)) == 1 or None in hosts:
            yield from ((self._within(rank), SUFFERS) for rank in place.members)
            return
        yield PathDevice("fabric", "all between the hosts", ()), PARTLY
        for rank, host in zip(place.members, hosts, strict=True):
            yield from ((device, SUFFERS) for device in self._outwards_of[rank])
            if hosts.count(host) > 1:
                yield self._within(rank), BESIDE
        yield from self._above(place)

    def _within(self, rank: int) -> PathDevice:
        """What carries a rank's data on its host."""
        nvlink = self._devices.nvlink(rank)
        if nvlink is not None:
            return PathDevice("nvlink", nvlink, (rank,))
        host = self._devices.host(rank)
        name = f"what connects rank {rank}" if host is None else f"the inside of {host}"
        return PathDevice("unknown", name, (rank,))

    @cached_property
    def _outwards_of(self) -> Mapping[int, Sequence[PathDevice]]:
        return {rank: tuple(self._outwards(rank)) for rank in self._ranks}

    def _outwards(self, rank: int) -> Iterator[PathDevice]:
        """What carries a rank's data from its host to its leaf, the leaf included."""
        nic, pcie, leaf = self._devices.nic(rank), self._devices.pcie(rank), self._leaf(rank)
        if nic is None:
            yield PathDevice("unknown", f"what connects rank {rank}", (rank,))
            return
        behind = self._behind_nic[nic]
        if pcie is not None:
            yield PathDevice("pcie", pcie, (rank,))
        yield PathDevice("nic", nic, behind)
        if leaf is not None:
            yield PathDevice("link", f"{nic}--{leaf}", behind)
            yield PathDevice("switch", leaf, self._behind_leaf[leaf])
        if rank in self.left:
            left = self.left[rank]
            yield PathDevice(
                "nic", left, tuple(sorted(one for one in self.left if self.left[one] == left))
            )

    def _above(self, place: Place) -> Iterator[Hop]:
        """Switches above the leaves and the cables to them. Each of a group's neighbours on
        different leaves uses one, by chance."""
        leaves = [leaf for rank in place.members if (leaf := self._leaf(rank))]
        ring = [*leaves, leaves[0]] if len(place.members) > 2 and leaves else leaves
        crossings = [pair for pair in pairwise(ring) if pair[0] != pair[1]]
        if not crossings:
            return
        tops = sorted(set.intersection(*(set(self._tops.get(leaf, ())) for leaf in set(leaves))))
        for top in tops:
            part = min(1 / len(tops), ALMOST)
            yield PathDevice("switch", top, (), part), _once_in(len(tops), len(crossings))
            for leaf in dict.fromkeys(leaves):
                uses = sum(leaf in pair for pair in crossings)
                behind = self._behind_leaf[leaf]
                yield (PathDevice("link", f"{leaf}--{top}", behind, part),
                       _once_in(len(tops), uses))  # fmt: skip

    @cached_property
    def left(self) -> Mapping[int, str]:
        """Adapters that ranks do not send by any more."""
        return adapters_left(self.window)

    @cached_property
    def _devices(self) -> Devices:
        return Devices(self.window)

    def _leaf(self, rank: int) -> str | None:
        nic = self._devices.nic(rank)
        return None if nic is None else self._leaf_of.get(nic)

    @cached_property
    def _leaf_of(self) -> Mapping[str, str]:
        """Adapter by full name to the switch it is connected to."""
        fabric = self.window.job.fabric
        switches = fabric.switches if fabric is not None else ()
        lowest = min((one.tier for one in switches), default=0)
        return {child: one.name for one in switches if one.tier == lowest for child in one.children}

    @cached_property
    def _tops(self) -> Mapping[str, Sequence[str]]:
        """Leaf to the switches above it."""
        fabric = self.window.job.fabric
        leaves, found = set(self._leaf_of.values()), dict[str, list[str]]()
        for one in fabric.switches if fabric is not None else ():
            for child in leaves.intersection(one.children):
                found.setdefault(child, []).append(one.name)
        return found

    @cached_property
    def _behind_nic(self) -> Mapping[str, tuple[int, ...]]:
        return _behind({rank: self._devices.nic(rank) for rank in self._ranks})

    @cached_property
    def _behind_leaf(self) -> Mapping[str, tuple[int, ...]]:
        return _behind({rank: self._leaf(rank) for rank in self._ranks})

    @property
    def _ranks(self) -> list[int]:
        return sorted(rank for host in self.window.job.hosts for rank in host.ranks)


def _behind(device_of: Mapping[int, str | None]) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for rank, name in device_of.items():
        if name is not None:
            found.setdefault(name, []).append(rank)
    return {name: tuple(ranks) for name, ranks in found.items()}


def _once_in(paths: int, uses: int) -> float:
    """How likely at least one of so many uses takes one of so many equal ways, and suffers."""
    return SUFFERS * (1 - (1 - 1 / paths) ** uses)
