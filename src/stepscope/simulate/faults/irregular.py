"""Holmes' three types of irregularity, for each of its types of device (section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stepscope.errors import UsageError
from stepscope.simulate.conditions import Conditions
from stepscope.simulate.faults.base import Blame, Fault
from stepscope.simulate.faults.gpu import GpuSlow
from stepscope.simulate.faults.host import CpuContention
from stepscope.simulate.faults.network import LinkSlow, NicSlow, SwitchSlow
from stepscope.simulate.world import World

DEVICES = ("gpu", "nic", "link", "switch", "cpu")
TYPES = {"spike": (8.0, 0.02), "fluctuation": (1.5, 85 / 600), "degradation": (1.5, 1.0)}
"""How many times slower the device is, and in which share of the steps. Spikes are rare and large.
85 of 600 steps fluctuated (section 3.1). A degradation stays; it cost a fifth of throughput."""
MORE = {"gpu": 1.0, "nic": 3.0, "link": 3.0, "switch": 3.0, "cpu": 28.0}
"""Multiplies the slowdown in excess of 1: a GPU computes all the time, but a network is used for a
tenth of it, and a host runs ahead until it is fifteen times slower."""


@dataclass(frozen=True, kw_only=True)
class Irregular(Fault):
    """A device of a rank (or a named `switch`) has one of Holmes' types of irregularity."""

    device: str = "gpu"
    type: str = "spike"
    rank: int = 0
    switch: str = ""

    name: ClassVar[str] = "irregular"
    family: ClassVar[str] = "Holmes: abnormal spikes, fluctuation, persistent degradation"
    help: ClassVar[str] = f"a device ({', '.join(DEVICES)}) has a {', '.join(TYPES)}"

    def check(self, world: World) -> None:
        if self.type not in TYPES:
            raise UsageError(f"{self.name}: no type {self.type}; known: {', '.join(TYPES)}")
        if self.device not in DEVICES:
            raise UsageError(f"{self.name}: no device {self.device}; known: {', '.join(DEVICES)}")
        self._inner(world).check(world)

    def active(self, step: int, world: World) -> bool:
        return super().active(step, world) and self.drawn(step, world, TYPES[self.type][1])

    def where(self, world: World) -> str:
        return f"{self.device} {self.type} {self._inner(world).where(world)}"

    def apply(self, conditions: Conditions) -> None:
        self._inner(conditions.world).apply(conditions)

    def blame(self, world: World) -> Blame:
        return self._inner(world).blame(world)

    def _inner(self, world: World) -> Fault:
        factor = 1 + (TYPES[self.type][0] - 1) * MORE[self.device]
        if self.device == "switch":
            return SwitchSlow(switch=self.switch or "leaf-0", factor=factor)
        ranks = (self.rank,)
        if self.device == "cpu":
            host = world.cluster.host_of_place[world.cluster.place_of[self.rank]]
            return CpuContention(hosts=(world.cluster.host_names[int(host)],), factor=factor)
        kinds: dict[str, type[GpuSlow | NicSlow | LinkSlow]] = {
            "gpu": GpuSlow, "nic": NicSlow, "link": LinkSlow,
        }  # fmt: skip
        return kinds[self.device](ranks=ranks, factor=factor)
