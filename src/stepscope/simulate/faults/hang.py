"""Delays and hangs of single operations, and jobs that stop for good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stepscope.errors import UsageError
from stepscope.simulate.conditions import Conditions, Stall
from stepscope.simulate.engine import NEVER
from stepscope.simulate.faults.base import MS, Blame, Fault, RankFault, places_of
from stepscope.simulate.program import Op
from stepscope.simulate.world import World
from stepscope.trace import BACKWARD, FORWARD
from stepscope.window import Ints

PLACES = {"forward": FORWARD, "backward": BACKWARD, "transfer": "transfer", "host": "host"}
STUCK_CALL = "forward_backward (schedules.py:530);forward (block.py:212);launch (cuda.cpp:88)"
STUCK_RECV = "forward_backward (schedules.py:530);recv_forward (p2p_communication.py:401)"
STUCK_PUT = "__next__ (dataloader.py:708);_preload (dynamic_robot_dataset.py:96);put (queue.py:140)"


@dataclass(frozen=True, kw_only=True)
class _AtOnePlace(Fault):
    """A fault of one rank in one pass of one microbatch.

    `at` is `forward`, `backward` (a kernel of that pass), `transfer` (what the rank sends to the
    next stage, or its gradients) or, for hangs only, `host`. The default microbatch is drawn by
    seed.
    """

    rank: int
    at: str = "forward"
    microbatch: int | None = None

    def where(self, world: World) -> str:
        return str(self.place(world))

    def place(self, world: World) -> int:
        return int(places_of(world, (self.rank,), self.name)[0])

    def check(self, world: World) -> None:
        super().check(world)
        self.spot(world, self.onset)

    def spot(self, world: World, step: int) -> tuple[int, Ints]:
        """The operation, and the places that it affects.

        Raises:
            UsageError: the rank's stage has no such operation.
        """
        op, place = self._op(world, step), self.place(world)
        return world.program.slot[op.key], world.together(op, place)

    def _op(self, world: World, step: int) -> Op:
        stage = self.place(world) // world.cluster.per_stage
        found = [op for op in world.program.stages[stage] if self._fits(op)]
        if not found:
            last = world.scenario.parallelism.microbatches - 1
            raise UsageError(f"{self.name}: rank {self.rank} has no {self.at} in microbatch "
                             f"{self.microbatch}; possible: {', '.join(PLACES)}, microbatches "
                             f"0 to {last}")  # fmt: skip
        source = world.random.source(f"where {self.name} {self.where(world)}", step)
        return found[int(source.integers(len(found)))]

    def _fits(self, op: Op) -> bool:
        if self.microbatch is not None and op.microbatch not in (self.microbatch, -1):
            return False
        if self.at == "transfer":
            return op.kind == "send" or (op.kind == "collective" and op.group in ("dp", "edp"))
        wanted = (FORWARD, BACKWARD) if self.at == "host" else (PLACES.get(self.at),)
        return op.kind == "compute" and op.phase in wanted

    def _stands_still(self, conditions: Conditions, slot: int) -> None:
        if self.at == "transfer":
            conditions.standing.append((slot, self.place(conditions.world)))

    def blame(self, world: World) -> Blame:
        place = self.place(world)
        host = world.cluster.host_names[int(world.cluster.host_of_place[place])]
        device = {"transfer": self._exit_device(world), "host": ""}.get(self.at, "gpu")
        cause = {"transfer": "network", "host": "host"}.get(self.at, "compute")
        devices = ((device, world.cluster.device_name(device, place)),) if device else ()
        phase = None if self.at in ("transfer", "host") else PLACES.get(self.at)
        return Blame(cause, ranks=(self.rank,), hosts=(host,), devices=devices, phase=phase)

    def _exit_device(self, world: World) -> str:
        """The device through which the transfer leaves the rank, in the first step."""
        if self.at != "transfer":
            return ""
        op, place = self._op(world, self.onset), self.place(world)
        host, cluster = world.cluster.host_of_place, world.cluster
        there = int(world.network.counterparts(op.group)[0][place])
        if op.partner is not None:
            there = place + (op.partner[0] - place // cluster.per_stage) * cluster.per_stage
        return "nvlink" if host[there] == host[place] else "nic"


@dataclass(frozen=True, kw_only=True)
class Delay(_AtOnePlace):
    """One operation takes longer by a fixed time, in each step in which the fault is active."""

    ms: float = 1000.0

    name: ClassVar[str] = "delay"
    family: ClassVar[str] = "VenusTrace: slowdowns at random positions, 50 ms to 30 s"
    help: ClassVar[str] = "one operation in the forward or backward pass or a transfer takes longer"

    def check(self, world: World) -> None:
        super().check(world)
        if self.at == "host":
            raise UsageError(f"{self.name}: at is forward, backward or transfer; for hosts use gc")

    def apply(self, conditions: Conditions) -> None:
        slot, places = self.spot(conditions.world, conditions.step)
        conditions.delay(np.array([slot]), places, int(self.ms * MS))
        self._stands_still(conditions, slot)


@dataclass(frozen=True, kw_only=True)
class Hang(_AtOnePlace):
    """One operation never ends or, with `host`, is never issued."""

    name: ClassVar[str] = "hang"
    family: ClassVar[str] = "VenusTrace: hangs at random positions"
    help: ClassVar[str] = "a kernel, a transfer or a host stops for good at step `from`"

    def apply(self, conditions: Conditions) -> None:
        slot, places = self.spot(conditions.world, conditions.step)
        if self.at == "host":
            conditions.stall(_forever(slot, places, STUCK_CALL))
        else:
            conditions.delay(np.array([slot]), places, NEVER)
            self._stands_still(conditions, slot)

    def blame(self, world: World) -> Blame:
        one = super().blame(world)
        return Blame(one.cause, "hang", one.ranks, one.hosts, one.devices, one.phase)


@dataclass(frozen=True, kw_only=True)
class MissingRecv(RankFault):
    """Ranks never post the receive of one microbatch's activations."""

    microbatch: int = 2

    name: ClassVar[str] = "missing_recv"
    family: ClassVar[str] = "VenusTrace case 1"
    help: ClassVar[str] = "a rank never posts a receive in the forward pass"

    def check(self, world: World) -> None:
        super().check(world)
        self._slot(world)

    def apply(self, conditions: Conditions) -> None:
        slot = self._slot(conditions.world)
        conditions.stall(_forever(slot, self.places(conditions.world), STUCK_RECV))

    def blame(self, world: World) -> Blame:
        return self.blamed(world, "unknown", kind="hang")

    def _slot(self, world: World) -> int:
        stages = {int(place) // world.cluster.per_stage for place in self.places(world)}
        key = ("forward", "recv", 0, self.microbatch)
        if not all(key in {op.key for op in world.program.stages[stage]} for stage in stages):
            raise UsageError(f"{self.name}: ranks {self.ranks} do not all receive in the forward "
                             f"pass of microbatch {self.microbatch}: the first stage does not, "
                             "and without a pipeline no rank does")  # fmt: skip
        return world.program.slot[key]


@dataclass(frozen=True, kw_only=True)
class StuckLoader(RankFault):
    """The input pipeline of a rank is deadlocked; the other ranks wait in collectives."""

    name: ClassVar[str] = "stuck_loader"
    family: ClassVar[str] = "EROICA case 3"
    help: ClassVar[str] = "a rank never gets its next batch"

    def apply(self, conditions: Conditions) -> None:
        slot = conditions.world.program.slot[("data-load",)]
        conditions.stall(_forever(slot, self.places(conditions.world), STUCK_PUT))

    def blame(self, world: World) -> Blame:
        return self.blamed(world, "data_loading", kind="hang", function="put")


def _forever(slot: int, places: Ints, frames: str) -> Stall:
    return Stall(slot, places, np.full(len(places), NEVER), frames, active=False)
