"""Which devices may carry a place's data, according to `job.json` and hardware counters.

Within a host, data goes over NVLink if counters show one; else the path is unknown. Between hosts,
each member of a group sends through its PCIe link, its NIC, the cable to its leaf switch and the
leaf; between leaves, through one of the spine switches, it is unknown which. The communication
library does not report its routes. So each device of a path has a probability that the place is
slow if the device is slow.
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
from stepscope.diagnose.network.rerouted import abandoned_nics
from stepscope.window import Ints, Mask, Window

Kind = Literal[
    "nic",
    "link",
    "switch",
    "nvlink",
    "pcie",
    "host",
    "unknown",
    "fabric",
    "edge",
    "lane",
    "distance",
]

SUFFERS = 0.9
"""Probability that a place is slow if a device on its path is: a ring is as fast as its slowest
edge, unless the library routes around it. Our simulator."""
BESIDE = 0.3
"""The same for NVLink and a group over several hosts. Data moves several times as fast within hosts
as between them, so a slow NVLink matters only if it became the slowest edge. Our simulator."""
ALMOST = 0.99
"""The share of a single spine switch in the traffic between leaves. Our simulator."""
PARTLY = 0.75
"""The same for a slow fabric, which affects all hosts, but not all equally. Our simulator."""


@dataclass(frozen=True)
class PathDevice:
    """A device on network paths, and the ranks behind it. The name of `unknown` is a description;
    `fabric` is everything between the hosts, `edge` and `lane` are what only two ranks use (between
    hosts, and within one), and `distance` is what lies between parts of the hosts, or of a host,
    that are farther from each other by design."""

    kind: Kind
    name: str
    ranks: tuple[int, ...]
    part: float = 1.0
    """Share of its ranks' connections to other hosts (below 1: to other leaves) that pass it."""

    def __hash__(self) -> int:
        return hash((self.kind, self.name, self.ranks[:1]))  # a leaf has hundreds of ranks


Hop = tuple[PathDevice, float]
"""A device on the path of a place, and the probability that the place is slow if the device is."""


@dataclass(frozen=True)
class Topology:
    """The network paths of a job."""

    window: Window

    def hops(self, place: Place) -> list[Hop]:
        """All devices that may carry a place's data."""
        chances: dict[PathDevice, float] = {}
        for device, chance in self._hops(place):
            chances[device] = max(chances.get(device, 0.0), chance)
        return list(chances.items())

    def outwards(self, rank: int) -> Sequence[PathDevice]:
        """The devices that carry a rank's data from its GPU to its leaf switch, inclusive."""
        return self._outwards_of.get(rank, ())

    def crosses_leaves(self, place: Place) -> int:
        """The number of leaf switches above the members of a place; 0 if the fabric is unknown."""
        leaves = set(map(self._leaf_of_rank.get, place.members))
        return len(leaves - {None, ""})

    def between_leaves(self, source: Ints, target: Ints) -> Mask:
        """Which connections go from one leaf to another; none if the leaves are unknown."""
        leaves: dict[str | None, int] = {None: -1}
        ranks = np.unique(np.concatenate((source, target)))
        number = [leaves.setdefault(self._leaf(rank), len(leaves)) for rank in ranks.tolist()]
        first, second = (np.array(number, np.int64)[np.searchsorted(ranks, one)]
                         for one in (source, target))  # fmt: skip
        return np.asarray((first != second) & (first >= 0) & (second >= 0))

    def _hops(self, place: Place) -> Iterator[Hop]:
        hosts = [self._devices.host(rank) for rank in place.members]
        yield from ((one, SUFFERS) for one in (*self._edge(place), *self._distances(place)))
        if len(set(hosts)) == 1 or None in hosts:
            yield from ((one, SUFFERS) for rank in place.members for one in self._within(rank))
            return
        yield PathDevice("fabric", "the network between the hosts", ()), PARTLY
        for rank, host in zip(place.members, hosts, strict=True):
            yield from ((device, SUFFERS) for device in self._outwards_of[rank])
            if hosts.count(host) > 1:
                yield from ((one, BESIDE) for one in self._within(rank))
        yield from self._above(place)

    def _edge(self, place: Place) -> Iterator[PathDevice]:
        """What only the two ranks of a pair use, by the names of its two ends."""
        if len(place.members) != 2:
            return
        ends, known = tuple(sorted(place.members)), self._devices
        if len({*map(known.host, ends)}) > 1:
            yield PathDevice("edge", "--".join(map(known.port, ends)), ends)
        elif known.nvlink(ends[0]) is None:
            yield PathDevice("lane", "--".join(map(known.place, ends)), ends)

    def _distances(self, place: Place) -> Iterator[PathDevice]:
        """What lies between groups of two, four and so on that follow one another: racks of hosts,
        or the sockets of a host."""
        hosts = {host for rank in place.members if (host := self._devices.host(rank))}
        at, count, what = (self._host_at, len(self.window.job.hosts), "hosts")
        if len(hosts) == 1:
            at, what = self._rank_at, "ranks of a host"
            count = max(len(one.ranks) for one in self.window.job.hosts if one.name in hosts)
        elif self.window.job.fabric is not None:
            return
        size = 2
        while size < count:
            if len({at.get(rank, 0) // size for rank in place.members}) > 1:
                yield PathDevice("distance", f"what lies between groups of {size} {what}", ())
            size *= 2

    @cached_property
    def _host_at(self) -> Mapping[int, int]:
        return {rank: at for at, one in enumerate(self.window.job.hosts) for rank in one.ranks}

    @cached_property
    def _rank_at(self) -> Mapping[int, int]:
        return {rank: at for one in self.window.job.hosts for at, rank in enumerate(one.ranks)}

    def _within(self, rank: int) -> Iterator[PathDevice]:
        """What carries a rank's data within its host: its own part of it, and that of all ranks."""
        nvlink, host = self._devices.nvlink(rank), self._devices.host(rank)
        kind: Kind = "unknown" if nvlink is None else "nvlink"
        if host is None:
            yield PathDevice(kind, nvlink or f"the connection of rank {rank}", (rank,))
            return
        name = nvlink or f"the interconnect inside {host}"
        yield PathDevice(kind, name, (rank,))
        if len(self._behind_host[host]) > 1:
            yield PathDevice(kind, name, self._behind_host[host])

    @cached_property
    def _outwards_of(self) -> Mapping[int, Sequence[PathDevice]]:
        return {rank: tuple(self._outwards(rank)) for rank in self._ranks}

    def _outwards(self, rank: int) -> Iterator[PathDevice]:
        """The devices that carry a rank's data from its GPU to its leaf switch, inclusive."""
        nic, pcie, leaf = self._devices.nic(rank), self._devices.pcie(rank), self._leaf(rank)
        if nic is None:
            yield PathDevice("unknown", f"the connection of rank {rank}", (rank,))
            host = self._devices.host(rank)
            if host is not None:
                yield PathDevice("unknown", f"the connection of {host}", self._behind_host[host])
            if leaf is not None:
                yield PathDevice("switch", leaf, self._behind_leaf[leaf])
            return
        behind = self._behind_nic[nic]
        if pcie is not None:
            yield PathDevice("pcie", pcie, (rank,))
        yield PathDevice("nic", nic, behind)
        if leaf is not None:
            yield PathDevice("link", f"{nic}--{leaf}", behind)
            yield PathDevice("switch", leaf, self._behind_leaf[leaf])
        host = self._devices.host(rank)
        if host is not None and behind != self._behind_host[host]:
            yield PathDevice("host", host, self._behind_host[host])
        if rank in self.abandoned:
            name = self.abandoned[rank]
            users = (one for one, nic in self.abandoned.items() if nic == name)
            yield PathDevice("nic", name, tuple(sorted(users)))

    def _above(self, place: Place) -> Iterator[Hop]:
        """The spine switches and the cables to them. Each pair of neighbours on different leaves
        uses one of them at random."""
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
    def abandoned(self) -> Mapping[int, str]:
        """NICs that ranks used before and do not use any more, by rank."""
        return abandoned_nics(self.window)

    @cached_property
    def _devices(self) -> Devices:
        return Devices(self.window)

    def _leaf(self, rank: int) -> str | None:
        return self._leaf_of_rank.get(rank)

    @cached_property
    def _leaf_of_rank(self) -> Mapping[int, str | None]:
        return {rank: self._leaf_above(rank) for rank in self._ranks}

    def _leaf_above(self, rank: int) -> str | None:
        nic, host = self._devices.nic(rank), self._devices.host(rank)
        return self._leaf_of_host.get(host or "") if nic is None else self._leaf_of.get(nic)

    @cached_property
    def _leaf_of(self) -> Mapping[str, str]:
        """The switch that each NIC is connected to, by the NIC's full name."""
        fabric = self.window.job.fabric
        switches = fabric.switches if fabric is not None else ()
        lowest = min((one.tier for one in switches), default=0)
        return {child: one.name for one in switches if one.tier == lowest for child in one.children}

    @cached_property
    def _leaf_of_host(self) -> Mapping[str, str]:
        """The switch that all adapters of a host are connected to, if they are to the same one."""
        leaves: dict[str, set[str]] = {}
        for child, leaf in self._leaf_of.items():
            leaves.setdefault(child.partition("/")[0], set()).add(leaf)
        return {host: min(found) for host, found in leaves.items() if len(found) == 1}

    @cached_property
    def _tops(self) -> Mapping[str, Sequence[str]]:
        """The switches above each leaf."""
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
    def _behind_host(self) -> Mapping[str, tuple[int, ...]]:
        return _behind({rank: self._devices.host(rank) for rank in self._ranks})

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


def _once_in(switches: int, uses: int) -> float:
    """The probability that at least one use takes a given one of equal switches, and is slow."""
    return SUFFERS * (1 - (1 - 1 / switches) ** uses)
