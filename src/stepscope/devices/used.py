"""The devices that a job used, by names that stay the same from job to job.

A GPU is its UUID where that was recorded: in a container GPU 0 may be a different one each time,
and a repaired host may come back with a new one. Everything else is its host with its local name
(`host-000/nic-2`), a link its two ends, a switch its own name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from stepscope.diagnose.network.devices import Devices
from stepscope.diagnose.network.topology import Topology
from stepscope.window import Window

TYPES = ("gpu", "cpu", "nic", "link", "switch", "nvlink", "pcie", "host")
BETWEEN_HOSTS = ("nic", "link", "switch")
"""Devices that only jobs of several hosts use."""
MOVING = (*BETWEEN_HOSTS, "nvlink", "pcie")
"""Devices that move data."""
TRANSFERRED = ("comm_ops", "transfers")
"""Tables without which nothing is known of how fast data moves."""


@dataclass(frozen=True)
class Used:
    """One device: its type, its full name, and what the maker calls it, if that was recorded."""

    type: str
    name: str
    id: str = ""

    @cached_property
    def key(self) -> str:
        """What identifies it in all jobs. A link is the same from either end."""
        return self.id or "--".join(sorted(self.name.split("--")))

    @property
    def host(self) -> str | None:
        """The host that it is in, or that a link begins at; None for switches and their links."""
        if self.type == "host":
            return self.name
        first, slash, _ = self.name.partition("/")
        return first if slash and self.type != "switch" else None


def used_devices(window: Window) -> tuple[Used, ...]:
    """Every device that a recorded rank used, once."""
    return tuple({one.key: one for one in _used(window)}.values())


def by_name(used: tuple[Used, ...]) -> Mapping[str, Used]:
    """Devices by the names that verdicts have for them."""
    return {one.name: one for one in used}


def of_ranks(window: Window, ranks: tuple[int, ...]) -> frozenset[str]:
    """The names of the devices of some ranks, without switches."""
    known, network = Devices(window), Topology(window)
    found = {one.name for rank in ranks for one in _on_host(known, rank)}
    paths = (device for rank in ranks for device in network.outwards(rank))
    return frozenset(found | {one.name for one in paths if one.kind in ("pcie", "nic", "link")})


def spans_hosts(window: Window) -> bool:
    """Whether more than one host has recorded ranks."""
    return len({host for rank in window.ranks if (host := window.host_of(rank))}) > 1


def _used(window: Window) -> Iterator[Used]:
    known = Devices(window)
    for rank in window.ranks:
        yield from _on_host(known, rank)
    if spans_hosts(window):
        yield from _between_hosts(window)


def _on_host(known: Devices, rank: int) -> Iterator[Used]:
    host = known.host(rank)
    if host is None:
        return
    yield Used("host", host)
    yield Used("cpu", f"{host}/cpu")
    if (gpu := known.gpu(rank)) is not None:
        yield Used("gpu", gpu, known.gpu_uuid(rank))
    if (pcie := known.pcie(rank)) is not None:
        yield Used("pcie", pcie)
    if (nvlink := known.nvlink(rank)) is not None:
        yield Used("nvlink", nvlink)


def _between_hosts(window: Window) -> Iterator[Used]:
    """Adapters, their cables, the leaf switches of the recorded ranks, and what connects these."""
    network, recorded = Topology(window), set(window.ranks)
    leaves: dict[str, None] = {}
    for rank in sorted(recorded):
        for device in network.outwards(rank):
            if device.kind in BETWEEN_HOSTS:
                yield Used(device.kind, device.name)
            if device.kind == "switch":
                leaves[device.name] = None
    if len(leaves) > 1:
        yield from _above(window, leaves)


def _above(window: Window, leaves: Mapping[str, None]) -> Iterator[Used]:
    """The switches above the leaves, which data between two leaves may pass."""
    fabric = window.job.fabric
    for switch in fabric.switches if fabric is not None else ():
        below = [leaf for leaf in leaves if leaf in switch.children]
        if below:
            yield Used("switch", switch.name)
        for leaf in below:
            yield Used("link", f"{leaf}--{switch.name}")
