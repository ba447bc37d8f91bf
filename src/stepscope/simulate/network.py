"""How fast data moves: the devices between two ranks, and how long a transfer over them takes.

A group sends along rings, as NCCL does. Within a host every member's NVLink carries all of the
data. Between hosts each member sends its share through its own adapter to its counterpart on the
next host: PCIe, adapter, the adapter's link, leaf, uplink, spine, and down again. The slowest
device on any edge determines the rate. All-to-all uses the same paths. GPUs that share an adapter
divide its bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.simulate.cluster import Cluster
from stepscope.window import Floats, Ints

LATENCY_NS = 15_000
"""Duration of the smallest collective within a host, from NCCL's tests on H100."""
LATENCY_PER_DOUBLING_NS = 4_000
"""Added for each doubling of the members; 512 ranks take about 50 microseconds."""

_PARTS = {
    "AllReduce": 2.0, "AllGather": 1.0, "ReduceScatter": 1.0, "AllToAll": 1.0, "Broadcast": 1.0,
}  # fmt: skip
"""How often the buffer crosses every edge of a ring, except for one member's share."""


@dataclass(frozen=True)
class Network:
    """The devices of a cluster by number, and the path of every edge."""

    cluster: Cluster

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Full names, as in findings: `host-000/nic-0--leaf-0`."""
        one, hosts = self.cluster, self.cluster.host_names
        hardware = one.scenario.hardware
        places = range(one.scenario.ranks)
        nics = [(h, f"{name}/nic-{n}") for h, name in enumerate(hosts)
                for n in range(hardware.nics_per_host)]  # fmt: skip
        uplinks = [f"leaf-{leaf}--spine-{spine}" for leaf in range(one.leaves)
                   for spine in range(hardware.spines)]  # fmt: skip
        return (
            *(one.device_name("nvlink", place) for place in places),
            *(one.device_name("pcie", place) for place in places),
            *(nic for _, nic in nics),
            *(f"{nic}--leaf-{one.leaf_of(host)}" for host, nic in nics),
            *(f"leaf-{leaf}" for leaf in range(one.leaves)),
            *uplinks,
            *(f"spine-{spine}" for spine in range(hardware.spines)),
        )

    @cached_property
    def _first(self) -> dict[str, int]:
        """The number of the first device of each kind."""
        ranks, hardware = self.cluster.scenario.ranks, self.cluster.scenario.hardware
        nics = self.cluster.hosts * hardware.nics_per_host
        sizes = {"nvlink": ranks, "pcie": ranks, "nic": nics, "link": nics,
                 "leaf": self.cluster.leaves, "uplink": self.cluster.leaves * hardware.spines,
                 "spine": hardware.spines}  # fmt: skip
        starts = np.cumsum([0, *sizes.values()])
        return dict(zip([*sizes, "end"], starts.tolist(), strict=True))

    @cached_property
    def slowness(self) -> Floats:
        """Nanoseconds per byte of one flow through each device."""
        hardware, first = self.cluster.scenario.hardware, self._first
        shared = max(1.0, hardware.gpus_per_host / hardware.nics_per_host)
        gb_per_s = {"nvlink": hardware.nvlink_gb_per_s, "pcie": hardware.pcie_gb_per_s,
                    "nic": hardware.nic_gb_per_s / shared, "link": hardware.nic_gb_per_s / shared,
                    "leaf": hardware.uplink_gb_per_s / shared,
                    "uplink": hardware.uplink_gb_per_s / shared,
                    "spine": hardware.uplink_gb_per_s / shared}  # fmt: skip
        slowness = np.zeros(first["end"] + 1)  # the last stands for no device and takes no time
        starts = [*first.values()]
        for (kind, start), stop in zip(first.items(), starts[1:], strict=False):
            if kind != "end":
                slowness[start:stop] = 1.0 / gb_per_s[kind]
        return slowness

    def device(self, kind: str, place: int) -> int:
        """The number of a place's `nvlink`, `pcie`, `nic` or `link`."""
        first = self._first[kind]
        return first + (place if kind in ("nvlink", "pcie") else int(self._nic[place]))

    @cached_property
    def _nic(self) -> Ints:
        places = np.arange(self.cluster.scenario.ranks)
        hardware = self.cluster.scenario.hardware
        within = places % hardware.gpus_per_host * hardware.nics_per_host // hardware.gpus_per_host
        return self.cluster.host_of_place * hardware.nics_per_host + within

    def path(self, here: Ints, there: Ints) -> Ints:
        """The devices between pairs of places: `[pair, 13]`, `none` if an edge has fewer."""
        first, none = self._first, self._first["end"]
        host, hardware = self.cluster.host_of_place, self.cluster.scenario.hardware
        inside = host[here] == host[there]
        leaf = [host[one] // hardware.hosts_per_leaf for one in (here, there)]
        across = leaf[0] != leaf[1]
        spine = (here * 31 + there) % hardware.spines
        columns = [np.where(inside, first["nvlink"] + one, none) for one in (here, there)]
        for one, its_leaf in zip((here, there), leaf, strict=True):
            nic = self._nic[one]
            for kind, number in (("pcie", one), ("nic", nic), ("link", nic), ("leaf", its_leaf)):
                columns.append(np.where(inside, none, first[kind] + number))
            uplink = first["uplink"] + its_leaf * hardware.spines + spine
            columns.append(np.where(across, uplink, none))
        columns.append(np.where(across, first["spine"] + spine, none))
        path: Ints = np.where((here == there)[:, None], none, np.stack(columns, axis=1))
        return path

    @cached_property
    def _edges(self) -> dict[str, _Edges]:
        """For each kind of group, the paths and the shares over which every place sends."""
        return {kind: self._edges_of(kind) for kind in self.cluster.kinds}

    def _edges_of(self, kind: str) -> _Edges:
        places, host = np.arange(self.cluster.scenario.ranks), self.cluster.host_of_place
        beside = places.copy()
        for members in self.cluster.members(kind):
            beside[members] = np.roll(members, -1)
        if kind == "pp":
            return _Edges(
                self.path(places, beside), self.path(places, places), np.ones(len(places))
            )
        # traffic between hosts is counted in `beyond`: it uses every member's adapter
        beside = np.where(host[beside] == host, beside, places)
        beyond, share = self.counterparts(kind)
        return _Edges(self.path(places, beside), self.path(places, beyond), share)

    def counterparts(self, kind: str) -> tuple[Ints, Floats]:
        """For every place the member on the next host to which it sends, and its share of the
        group's traffic; the place itself if the group is on one host."""
        places = np.arange(self.cluster.scenario.ranks)
        beyond, share = places.copy(), np.ones(len(places))
        for members in self.cluster.members(kind):
            by_host = _split(members, self.cluster.host_of_place[members])
            for here, there in zip(by_host, [*by_host[1:], by_host[0]], strict=True):
                if len(by_host) > 1:
                    beyond[here] = there[np.arange(len(here)) % len(there)]
                    share[here] = 1 / len(here)
        return beyond, share

    def ns_per_byte(self, kind: str, factor: Floats) -> Floats:
        """Nanoseconds per byte for every place's group, if devices are slower by `factor`.

        For `pp` it is the edge to the next stage; that of the last stage leads back to the first.
        """
        slowest = np.maximum(*self._of_edges(kind, factor))
        by_stage = slowest.reshape(self.cluster.stages, *self.cluster.grid.shape)
        if kind == "pp":
            return slowest
        if kind == "world":
            return np.full(len(slowest), slowest.max())
        if kind == "embedding":
            both = np.maximum(by_stage[0], by_stage[-1])
            return np.broadcast_to(both, by_stage.shape).ravel()
        over = tuple(1 + axis for axis in self.cluster.grid.over[kind])
        return np.broadcast_to(by_stage.max(axis=over, keepdims=True), by_stage.shape).ravel()

    def occupied(self, kind: str, factor: Floats) -> Floats:
        """The share of its group's transfers in which each place is sending to the next host.

        It is 1 if the place's edge is the slowest of the group. Otherwise the place waits for the
        slowest, because all edges of a ring carry the same data (EROICA, figures 3 to 5).
        """
        _, beyond = self._of_edges(kind, factor)
        per_byte = self.ns_per_byte(kind, factor)
        return np.divide(beyond, per_byte, out=np.ones(len(per_byte)), where=per_byte > 0)

    def _of_edges(self, kind: str, factor: Floats) -> tuple[Floats, Floats]:
        """Nanoseconds per byte of the buffer on each place's edges: on its host, and beyond."""
        edges, slowness = self._edges[kind], self.slowness * factor
        within: Floats = slowness[edges.beside].max(axis=1)
        beyond: Floats = slowness[edges.beyond].max(axis=1) * edges.share
        return within, beyond

    def users(self, devices: Sequence[int], kind: str) -> Ints:
        """The places whose edge in groups of this kind uses one of these devices."""
        edges = self._edges[kind]
        passed = np.isin(np.hstack([edges.beside, edges.beyond]), devices)
        return np.flatnonzero(passed.any(axis=1))


@dataclass(frozen=True)
class _Edges:
    """The edges over which every place of one kind of group sends."""

    beside: Ints
    """`[place, device]`: the path to the next member on the same host; for `pp` the next stage."""
    beyond: Ints
    """The path to its counterpart on the next host."""
    share: Floats
    """The share of the buffer that this place's adapter sends to the next host."""


def _split(places: Ints, hosts: Ints) -> list[Ints]:
    """The members on each host, with the hosts in order of appearance."""
    return [places[hosts == host] for host in dict.fromkeys(hosts.tolist())]


def passes(op: str, members: int) -> float:
    """How many times an operator's buffer crosses the slowest edge."""
    return _PARTS[op] * (members - 1) / members if op in _PARTS else 1.0


def latency_ns(members: int) -> float:
    return LATENCY_NS + LATENCY_PER_DOUBLING_NS * float(np.log2(max(members, 2)))
