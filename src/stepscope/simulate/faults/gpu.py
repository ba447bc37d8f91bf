"""Faults of GPUs and of the way to them."""

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
"""A throttling H100 stands at its limit of about 85 degrees."""
ECC_TIMES = 10.0
"""A kernel that meets a page being corrected and retired: the tail, not the bulk."""
ECC_SHARE = 0.05


def computing(world: World, only: str = "") -> Ints:
    """The slots of computation: all, or those of one operation or phase.

    Raises:
        UsageError: there is no computation of that name.
    """
    found = world.program.slots(lambda op: op.kind == "compute" and only in ("", op.name, op.phase))
    if not len(found):
        names = sorted({name for op in world.ops if op.kind == "compute"
                        for name in (op.name, op.phase)})  # fmt: skip
        raise UsageError(f"no computation is called {only}; there are {', '.join(names)}")
    return found


@dataclass(frozen=True, kw_only=True)
class GpuSlow(RankFault):
    """Clocks are held down, or the chip is bad: kernels take `factor` times as long.

    `only` limits it to one operation or phase. `seen` says whether the clock and temperature show
    it. `decoy` is an event that its host's counters show meanwhile and that has nothing to do with
    it, as the port that went down in ARGUS section 9.5.
    """

    factor: float = 1.5
    only: str = ""
    seen: bool = True
    decoy: str = ""

    name: ClassVar[str] = "gpu_slow"
    family: ClassVar[str] = "ARGUS Table 6: GPU frequency throttling; cases 1, 3, 5; EROICA case 4"
    help: ClassVar[str] = "computation takes longer on some GPUs: throttling, a bad chip"

    def check(self, world: World) -> None:
        super().check(world)
        computing(world, self.only)
        if self.decoy and self.decoy not in EVENTS:
            raise UsageError(f"{self.name}: no event {self.decoy}; there are {', '.join(EVENTS)}")

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
    help: ClassVar[str] = "a twentieth of the kernels takes ten times as long, in a tenth of steps"

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
    """Another process keeps multiprocessors busy, with an idle model's collectives say."""

    factor: float = 1.2

    name: ClassVar[str] = "gpu_shared"
    family: ClassVar[str] = "EROICA case 5"
    help: ClassVar[str] = "a stranger's process takes part of the GPUs of some hosts"

    def apply(self, conditions: Conditions) -> None:
        places = self.places(conditions.world)
        conditions.stretch(computing(conditions.world), places, self.factor)
        conditions.read(Reading("gpu_strangers", places, plus=1.0))

    def blame(self, world: World) -> Blame:
        """The stranger is on the host, and on each of its GPUs."""
        one, places = self.blamed(world, "contention", "host"), self.places(world).tolist()
        gpus = tuple(("gpu", world.cluster.device_name("gpu", place)) for place in places)
        return replace(one, devices=(*one.devices, *gpus))


@dataclass(frozen=True, kw_only=True)
class PcieSlow(RankFault):
    """The link between a GPU and its host lost lanes: copies take `factor` times as long.

    Copies are issued ahead and overlap computation, all but the first of a step: down to PCIe 3 x1
    (a factor of 55) that costs next to nothing. The default is what is left of PCIe 5 x16 when a
    link has fallen back to the first generation on one lane, 0.25 GB/s.
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
