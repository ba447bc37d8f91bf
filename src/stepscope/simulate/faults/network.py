"""Faults of the devices that move data between ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stepscope.errors import UsageError
from stepscope.simulate.conditions import Conditions, Reading
from stepscope.simulate.faults.base import Blame, Fault, RankFault, everywhere
from stepscope.simulate.record.hardware import ADAPTERS_LINK
from stepscope.simulate.world import World
from stepscope.window import Ints


@dataclass(frozen=True, kw_only=True)
class _SlowDevice(RankFault):
    """A device of some ranks transfers data `factor` times slower."""

    factor: float = 4.0

    device: ClassVar[str]
    """Its kind, as in `Network`."""

    def apply(self, conditions: Conditions) -> None:
        network = conditions.world.network
        devices = {network.device(self.device, place) for place in self.places(conditions.world)}
        conditions.slow_device(tuple(sorted(devices)), self.factor)

    def blame(self, world: World) -> Blame:
        return self.blamed(world, "network", self.device)


@dataclass(frozen=True, kw_only=True)
class NvlinkSlow(_SlowDevice):
    """Some NVLink links of a GPU are lost, or run with errors."""

    device: ClassVar[str] = "nvlink"
    name: ClassVar[str] = "nvlink_slow"
    family: ClassVar[str] = "ARGUS Table 6: NVLink bandwidth degradation"
    help: ClassVar[str] = "traffic within the host is slower for some GPUs"


@dataclass(frozen=True, kw_only=True)
class NvlinkDown(_SlowDevice):
    """All traffic of a GPU within its host goes over PCIe: the factor is the ratio of the rates."""

    factor: float = 370.0 / 55.0

    device: ClassVar[str] = "nvlink"
    name: ClassVar[str] = "nvlink_down"
    family: ClassVar[str] = "EROICA case 4: NVLink down"
    help: ClassVar[str] = "some GPUs have lost NVLink and use PCIe"

    def apply(self, conditions: Conditions) -> None:
        super().apply(conditions)
        places = self.places(conditions.world)
        conditions.read(Reading("pcie_tx_bytes_per_s", places, times=3.0))


@dataclass(frozen=True, kw_only=True)
class NicSlow(_SlowDevice):
    """An adapter retransmits, or has negotiated a lower rate."""

    device: ClassVar[str] = "nic"
    name: ClassVar[str] = "nic_slow"
    family: ClassVar[str] = "ARGUS Table 6: RDMA link quality degradation; Holmes: NIC"
    help: ClassVar[str] = "the network adapters of some ranks are slower"

    def apply(self, conditions: Conditions) -> None:
        super().apply(conditions)
        places = self.places(conditions.world)
        conditions.read(Reading("nic_retrans", places, plus=100.0, of_adapter=True))


@dataclass(frozen=True, kw_only=True)
class NicDown(_SlowDevice):
    """An adapter is down, and its traffic goes through another one, across the CPU sockets.

    No counter shows it: in EROICA's case the monitoring agent was too old to report it. Work
    requests are counted where they are posted, so the other adapter counts them.
    """

    device: ClassVar[str] = "nic"
    name: ClassVar[str] = "nic_down"
    family: ClassVar[str] = "EROICA case 2: NIC down"
    help: ClassVar[str] = "some adapters are down; traffic takes a detour, and no counter shows it"

    def apply(self, conditions: Conditions) -> None:
        super().apply(conditions)
        world, places = conditions.world, self.places(conditions.world)
        nics = world.scenario.hardware.nics_per_host
        own = np.array([world.cluster.nic_of(place) for place in places.tolist()])
        if nics > 1:
            conditions.detours.append((places, (own + nics // 2) % nics))


@dataclass(frozen=True, kw_only=True)
class AdapterPcieSlow(_SlowDevice):
    """The adapter's PCIe link is damaged and trained at a lower rate; copies are unaffected."""

    device: ClassVar[str] = "pcie"
    name: ClassVar[str] = "adapter_pcie_slow"
    family: ClassVar[str] = "ARGUS case 2"
    help: ClassVar[str] = "traffic between hosts is slower for some GPUs because of PCIe"

    def apply(self, conditions: Conditions) -> None:
        super().apply(conditions)
        places = self.places(conditions.world)
        conditions.read(Reading(ADAPTERS_LINK, places, times=1 / self.factor, of_adapter=True))


@dataclass(frozen=True, kw_only=True)
class LinkSlow(_SlowDevice):
    """The cable between an adapter and its leaf switch is slow."""

    device: ClassVar[str] = "link"
    name: ClassVar[str] = "link_slow"
    family: ClassVar[str] = "Holmes: link"
    help: ClassVar[str] = "the cables from some ranks' adapters to their leaf switch are slower"

    def blame(self, world: World) -> Blame:
        found = self.blamed(world, "network")
        numbers = [world.network.device("link", place) for place in self.places(world)]
        names = dict.fromkeys(("link", world.network.names[number]) for number in numbers)
        return Blame("network", ranks=found.ranks, hosts=found.hosts, devices=tuple(names))


@dataclass(frozen=True, kw_only=True)
class SwitchSlow(Fault):
    """A leaf, a spine or an uplink between them (`leaf-0--spine-1`) is slow."""

    switch: str
    factor: float = 3.0

    name: ClassVar[str] = "switch_slow"
    family: ClassVar[str] = "Holmes: switch"
    help: ClassVar[str] = "a leaf, spine or uplink is slower"

    def apply(self, conditions: Conditions) -> None:
        conditions.slow_device((self._number(conditions.world),), self.factor)

    def blame(self, world: World) -> Blame:
        """The ranks behind it; none in particular, if all traffic passes through it."""
        places = self._behind(world)
        if not len(places):
            raise UsageError(f"{self.name}: no traffic of this job passes {self.switch}")
        ranks = sorted(world.cluster.rank_of[places].tolist())
        kind = "link" if "--" in self.switch else "switch"
        return Blame("network", ranks=() if len(ranks) == world.scenario.ranks else tuple(ranks),
                     devices=((kind, self.switch),))  # fmt: skip

    def _behind(self, world: World) -> Ints:
        """The places connected to a leaf; for other switches, the places that send through it."""
        number, network = self._number(world), world.network
        users = [network.users((number,), kind) for kind in world.cluster.kinds]
        used = np.unique(np.concatenate([np.zeros(0, np.int64), *users]))
        hardware, cluster = world.scenario.hardware, world.cluster
        if len(used) and self.switch.startswith("leaf") and "--" not in self.switch:
            leaf = int(self.switch.removeprefix("leaf-"))
            return np.flatnonzero(cluster.host_of_place // hardware.hosts_per_leaf == leaf)
        return used

    def where(self, world: World) -> str:
        return self.switch

    def _number(self, world: World) -> int:
        names = world.network.names
        if self.switch not in names:
            known = [name for name in names if name.startswith(("leaf", "spine"))]
            raise UsageError(f"{self.name}: no switch {self.switch}; known: {', '.join(known)}")
        return names.index(self.switch)


@dataclass(frozen=True, kw_only=True)
class Congestion(SwitchSlow):
    """Other jobs' traffic shares a switch now and then."""

    chance: float = 0.3

    name: ClassVar[str] = "congestion"
    family: ClassVar[str] = "ARGUS Table 6: inter-node network congestion"
    help: ClassVar[str] = "a switch is slower in a third of the steps"


@dataclass(frozen=True, kw_only=True)
class FabricSlow(Fault):
    """Flows are scheduled badly over the fabric: each adapter gets a different, smaller share."""

    factor: float = 2.0

    name: ClassVar[str] = "fabric_slow"
    family: ClassVar[str] = "EROICA case 2: low cluster network throughput"
    help: ClassVar[str] = "all traffic between hosts is slower, by a different factor per adapter"

    def apply(self, conditions: Conditions) -> None:
        network = conditions.world.network
        shares = conditions.world.random.source("fabric", conditions.step)
        for place in everywhere(conditions.world):
            spread = float(np.exp(0.15 * shares.standard_normal()))
            conditions.slow_device((network.device("pcie", int(place)),), self.factor * spread)

    def blame(self, world: World) -> Blame:
        return Blame("network")
