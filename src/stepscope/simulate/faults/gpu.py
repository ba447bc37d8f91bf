"""Faults of GPUs and of their connection to the host."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from stepscope.errors import UsageError
from stepscope.simulate.conditions import Conditions, Reading
from stepscope.simulate.faults.base import Blame, HostFault, RankFault
from stepscope.simulate.program import DEVICE_WORK
from stepscope.simulate.record.hardware import EVENTS
from stepscope.simulate.world import World
from stepscope.window import Ints

HOTTER_C = 18.0
"""An H100 that throttles is at its limit of about 85 degrees."""
ECC_TIMES = 10.0
"""A kernel that hits a page that is being corrected and retired: the tail, not the average."""
ECC_SHARE = 0.05


def computing(world: World, only: str = "") -> Ints:
    """The slots of computation: all, or those of one operation or phase.

    Raises:
        UsageError: no computation has that name.
    """
    found = world.program.slots(lambda op: op.kind == "compute" and only in ("", op.name, op.phase))
    if not len(found):
        names = sorted({name for op in world.ops if op.kind == "compute"
                        for name in (op.name, op.phase)})  # fmt: skip
        raise UsageError(f"no computation is called {only}; known names: {', '.join(names)}")
    return found


@dataclass(frozen=True, kw_only=True)
class GpuSlow(RankFault):
    """Clocks are throttled, or the chip is bad: kernels take `factor` times as long.

    `only` limits it to one operation or phase. `seen` says whether clock and temperature show it.
    `decoy` is an unrelated event that the counters of its host show at the same time, such as the
    port that went down in ARGUS section 9.5.
    """

    factor: float = 1.5
    only: str = ""
    seen: bool = True
    decoy: str = ""

    name: ClassVar[str] = "gpu_slow"
    family: ClassVar[str] = "ARGUS Table 6: GPU frequency throttling; cases 1, 3, 5; EROICA case 4"
    help: ClassVar[str] = "computation takes longer on some GPUs: throttling, or a bad chip"

    def check(self, world: World) -> None:
        super().check(world)
        computing(world, self.only)
        if self.decoy and self.decoy not in EVENTS:
            raise UsageError(f"{self.name}: no event {self.decoy}; known: {', '.join(EVENTS)}")

    def apply(self, conditions: Conditions) -> None:
        places = self.places(conditions.world)
        conditions.stretch(computing(conditions.world, self.only), places, self.factor)
        if self.seen:
            conditions.read(Reading("sm_clock_mhz", places, times=1 / self.factor))
            conditions.read(Reading("gpu_temp_c", places, plus=HOTTER_C))
        if self.decoy:
            conditions.read(Reading(self.decoy, places[:1], plus=1.0))

    def blame(self, world: World) -> Blame:
        phase = next((op.phase for op in world.ops if self.only in (op.name, op.phase)), None)
        return self.blamed(world, "compute", "gpu", phase=phase if self.only else None)


@dataclass(frozen=True, kw_only=True)
class GpuEcc(RankFault):
    """Memory errors are corrected: now and then some kernels take ten times as long."""

    chance: float = 0.1

    name: ClassVar[str] = "gpu_ecc"
    family: ClassVar[str] = "ARGUS Table 6: ECC error correction overhead"
    help: ClassVar[str] = "one kernel in twenty takes ten times as long, in one step of ten"

    def apply(self, conditions: Conditions) -> None:
        world, places = conditions.world, self.places(conditions.world)
        slots = computing(world)
        source = world.random.source(f"ecc {self.where(world)}", conditions.step)
        hit = source.random((len(slots), len(places))) < ECC_SHARE
        conditions.stretch(slots, places, np.where(hit, ECC_TIMES, 1.0))
        conditions.read(Reading("ecc_sbe", places, plus=float(hit.sum())))

    def blame(self, world: World) -> Blame:
        return self.blamed(world, "compute", "gpu")


@dataclass(frozen=True, kw_only=True)
class GpuShared(HostFault):
    """Another process keeps SMs busy, e.g. with the collectives of an idle model."""

    factor: float = 1.2

    name: ClassVar[str] = "gpu_shared"
    family: ClassVar[str] = "EROICA case 5"
    help: ClassVar[str] = "another process uses part of the GPUs of some hosts"

    def apply(self, conditions: Conditions) -> None:
        places = self.places(conditions.world)
        conditions.stretch(computing(conditions.world), places, self.factor)
        conditions.read(Reading("gpu_strangers", places, plus=1.0))

    def blame(self, world: World) -> Blame:
        """The other process is on the host, and on each of its GPUs."""
        one, places = self.blamed(world, "contention", "host"), self.places(world).tolist()
        gpus = tuple(("gpu", world.cluster.device_name("gpu", place)) for place in places)
        return replace(one, devices=(*one.devices, *gpus))


@dataclass(frozen=True, kw_only=True)
class PcieSlow(RankFault):
    """The link between a GPU and its host has lost lanes: copies take `factor` times as long.

    Copies are issued ahead and overlap computation, except for the first of a step: down to PCIe 3
    x1 (a factor of 55) the fault costs next to nothing. The default is what remains of PCIe 5 x16
    when the link falls back to one lane of the first generation, 0.25 GB/s.
    """

    factor: float = 220.0

    name: ClassVar[str] = "pcie_slow"
    family: ClassVar[str] = "ARGUS Table 6: PCIe bandwidth degradation"
    help: ClassVar[str] = "copies between host and device take longer on some ranks"

    def apply(self, conditions: Conditions) -> None:
        places = self.places(conditions.world)
        copies = conditions.world.program.slots(lambda op: op.kind == DEVICE_WORK[1])
        conditions.stretch(copies, places, self.factor)
        conditions.read(Reading("pcie_replays", places, plus=1000.0))
        conditions.read(Reading("pcie_link_gb_per_s", places, times=1 / self.factor))

    def blame(self, world: World) -> Blame:
        return self.blamed(world, "memory_copy", "pcie")
