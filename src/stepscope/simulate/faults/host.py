"""Faults of the host: its CPUs, its interpreter, its input, its code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stepscope.errors import UsageError
from stepscope.simulate.conditions import Conditions, Reading, Stall
from stepscope.simulate.faults.base import (
    MS,
    Blame,
    Fault,
    HostFault,
    RankFault,
    everywhere,
    places_of,
)
from stepscope.simulate.world import World
from stepscope.trace import BACKWARD, DATA_LOAD, FORWARD
from stepscope.window import Ints

SPREAD = 0.2
"""Log-normal spread of the duration of a stall."""
COLLECTING = "forward_backward (schedules.py:530);collect (gc.py:1)"
READING = "__next__ (dataloader.py:708);_next_data (dataloader.py:764);recv_into (socket.py:707)"
PINNING = "__next__ (dataloader.py:708);_next_data (dataloader.py:764);pin_memory (pin.py:52)"
COMPILING = "forward_backward (schedules.py:530);backward (function.py:307);compile (cute.py:41)"
LATE = "forward_backward (schedules.py:530);forward (block.py:212);_compile_graph (inductor.py:88)"
SLOW_FORWARD = "forward_backward (schedules.py:530);forward (encoder.py:131)"


def first_of(world: World, phase: str, microbatch: int) -> int:
    """The first computation of a microbatch's pass.

    Raises:
        UsageError: there is no such microbatch.
    """
    found = world.program.slots(
        lambda op: op.kind == "compute" and op.phase == phase and op.microbatch == microbatch
    )
    if not len(found):
        last = world.scenario.parallelism.microbatches - 1
        raise UsageError(f"no microbatch {microbatch}; this job has 0 to {last}")
    return int(found[0])


def lasting(conditions: Conditions, what: str, ms: float, places: Ints) -> Ints:
    """How long each of some places stalls, in nanoseconds."""
    random, ranks = conditions.world.random, conditions.world.scenario.ranks
    spread = random.factors(f"stall {what}", SPREAD, (ranks,), conditions.step)[places]
    return np.rint(ms * MS * spread).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Gc(Fault):
    """Python collects garbage: on certain ranks, or on different ranks in each step."""

    ranks: tuple[int, ...] = ()
    ms: float = 300.0
    share: float = 0.02
    """Without named ranks: the share of the ranks that collect in any step."""

    name: ClassVar[str] = "gc"
    family: ClassVar[str] = "ARGUS Table 6: Python GC pause; EROICA case 1: asynchronous collection"
    help: ClassVar[str] = "the interpreter stops to collect garbage; unnamed: other ranks each step"

    def apply(self, conditions: Conditions) -> None:
        world = conditions.world
        places = places_of(world, self.ranks, self.name) if self.ranks else self._any(conditions)
        slot = first_of(world, FORWARD, 0)
        lasted = lasting(conditions, self.name, self.ms, places)
        conditions.stall(Stall(slot, places, lasted, COLLECTING, pause="gc"))

    def where(self, world: World) -> str:
        return str(places_of(world, self.ranks, self.name).tolist()) if self.ranks else ""

    def _any(self, conditions: Conditions) -> Ints:
        world = conditions.world
        drawn = world.random.source("who collects", conditions.step).random(world.scenario.ranks)
        return np.flatnonzero(drawn < self.share)

    def blame(self, world: World) -> Blame:
        if not self.ranks:
            return Blame("gc")
        hosts = [world.cluster.host_of_place[one]
                 for one in places_of(world, self.ranks, self.name)]  # fmt: skip
        names = dict.fromkeys(world.cluster.host_names[int(host)] for host in hosts)
        return Blame("gc", ranks=self.ranks, hosts=tuple(names))


@dataclass(frozen=True, kw_only=True)
class _Stalling(RankFault):
    """The hosts of some ranks stall once a step, before one operation."""

    ms: float = 500.0

    cause: ClassVar[str]
    frames: ClassVar[str]
    working: ClassVar[bool] = True

    def check(self, world: World) -> None:
        super().check(world)
        self.slot(world)

    def slot(self, world: World) -> int:
        return first_of(world, FORWARD, 0)

    def apply(self, conditions: Conditions) -> None:
        places = self.places(conditions.world)
        lasted = lasting(conditions, self.name, self.ms, places)
        stall = Stall(self.slot(conditions.world), places, lasted, self.frames, self.working)
        conditions.stall(stall)

    def blame(self, world: World) -> Blame:
        function = self.frames.rpartition(";")[2].partition(" ")[0]
        return self.blamed(world, self.cause, function=function)


@dataclass(frozen=True, kw_only=True)
class DataSlow(_Stalling):
    """Storage is slow: the step begins only when the batch has arrived."""

    cause: ClassVar[str] = "data_loading"
    frames: ClassVar[str] = READING
    working: ClassVar[bool] = False
    name: ClassVar[str] = "data_slow"
    family: ClassVar[str] = "ARGUS Table 6: data loading stall; EROICA case 1: recv_into"
    help: ClassVar[str] = "some ranks wait for their next batch"

    def slot(self, world: World) -> int:
        return world.program.slot[(DATA_LOAD,)]


@dataclass(frozen=True, kw_only=True)
class PinMemory(DataSlow):
    """Loaders pin memory too often."""

    frames: ClassVar[str] = PINNING
    working: ClassVar[bool] = True
    name: ClassVar[str] = "pin_memory"
    family: ClassVar[str] = "EROICA case 2: pin memory in ultra-high frequency"
    help: ClassVar[str] = "some ranks spend their time pinning memory for batches"


@dataclass(frozen=True, kw_only=True)
class JitCompile(_Stalling):
    """A kernel for a new shape is compiled in the middle of a backward pass."""

    ms: float = 6000.0
    microbatch: int = 7
    chance: float = 0.03

    cause: ClassVar[str] = "jit_compile"
    frames: ClassVar[str] = COMPILING
    name: ClassVar[str] = "jit_compile"
    family: ClassVar[str] = "ARGUS case 4"
    help: ClassVar[str] = "some ranks compile a kernel in a backward pass, in a few steps"

    def slot(self, world: World) -> int:
        return first_of(world, BACKWARD, self.microbatch)


@dataclass(frozen=True, kw_only=True)
class LateCompile(_Stalling):
    """The graph compiler is busy in the first passes after `onset`, on some workers only."""

    ms: float = 800.0
    until: int | None = 20

    cause: ClassVar[str] = "jit_compile"
    frames: ClassVar[str] = LATE
    name: ClassVar[str] = "late_compile"
    family: ClassVar[str] = "KAIR: delay of the graph compiler"
    help: ClassVar[str] = "some ranks compile during the first twenty steps"


@dataclass(frozen=True, kw_only=True)
class SlowCode(Fault):
    """A Python function does too much between two launches, on every rank."""

    ms: float = 150.0
    """The host runs ahead: it costs nothing unless the host becomes slower than the device."""

    name: ClassVar[str] = "slow_code"
    family: ClassVar[str] = "EROICA case 1: inefficient forward"
    help: ClassVar[str] = "a function of the model takes too long on every rank, each microbatch"

    def apply(self, conditions: Conditions) -> None:
        world, places = conditions.world, everywhere(conditions.world)
        for microbatch in range(world.scenario.parallelism.microbatches):
            lasted = lasting(conditions, f"{self.name} {microbatch}", self.ms, places)
            slot = first_of(world, FORWARD, microbatch)
            conditions.stall(Stall(slot, places, lasted, SLOW_FORWARD))

    def blame(self, world: World) -> Blame:
        return Blame("code", function="forward")


@dataclass(frozen=True, kw_only=True)
class _StarvedHost(HostFault):
    """Everything that some hosts do takes `factor` times as long, because CPUs are missing."""

    factor: float = 15.0

    cause: ClassVar[str]

    def apply(self, conditions: Conditions) -> None:
        places = self.places(conditions.world)
        conditions.slow_host(places, self.factor)
        conditions.read(Reading("run_delay", places, plus=1 - 1 / self.factor))

    def blame(self, world: World) -> Blame:
        return self.blamed(world, self.cause, "cpu")


@dataclass(frozen=True, kw_only=True)
class CpuContention(_StarvedHost):
    """Other processes on a host use its CPUs."""

    cause: ClassVar[str] = "contention"
    name: ClassVar[str] = "cpu_contention"
    family: ClassVar[str] = "ARGUS Table 6: CPU contention; Holmes: persistent degradation, CPU"
    help: ClassVar[str] = "other processes use the CPUs of some hosts"

    def apply(self, conditions: Conditions) -> None:
        super().apply(conditions)
        places = self.places(conditions.world)
        conditions.read(Reading("cpu_util", places, plus=0.97, host_level=True))


@dataclass(frozen=True, kw_only=True)
class FewCores(_StarvedHost):
    """A container got too few CPUs of its host: its ranks compete with one another."""

    cause: ClassVar[str] = "host"
    name: ClassVar[str] = "few_cores"
    family: ClassVar[str] = "VenusTrace case 2"
    help: ClassVar[str] = "the containers of some hosts have too few CPUs"
