"""Faults of the framework and its configuration; the hardware is fine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stepscope.errors import UsageError
from stepscope.simulate.conditions import Conditions
from stepscope.simulate.faults.base import Blame, Fault, RankFault, everywhere
from stepscope.simulate.workload import EXPERTS, PHASE_OF
from stepscope.simulate.world import World
from stepscope.window import Ints


@dataclass(frozen=True, kw_only=True)
class ExpertImbalance(RankFault):
    """The router prefers the experts of some ranks."""

    factor: float = 2.0

    name: ClassVar[str] = "expert_imbalance"
    family: ClassVar[str] = "ARGUS Table 6: MoE expert load imbalance"
    help: ClassVar[str] = "the experts of some ranks get more tokens than others"

    def check(self, world: World) -> None:
        super().check(world)
        if world.scenario.workload.kind != "moe":
            raise UsageError(f'{self.name} needs experts: a workload of kind "moe"')

    def apply(self, conditions: Conditions) -> None:
        slots = conditions.world.program.slots(lambda op: op.name == EXPERTS)
        conditions.stretch(slots, self.places(conditions.world), self.factor)

    def blame(self, world: World) -> Blame:
        return self.blamed(world, "load_imbalance", phase=EXPERTS)


@dataclass(frozen=True, kw_only=True)
class UnevenInputs(Fault):
    """Samples differ in length, and they are not balanced between replicas.

    The named data-parallel replicas get `factor` times the work. If none are named, each replica
    gets a different share in every step, with a log-normal spread of `factor - 1`.
    """

    replicas: tuple[int, ...] = ()
    factor: float = 1.4

    name: ClassVar[str] = "uneven_inputs"
    family: ClassVar[str] = "EROICA case 2: load imbalance"
    help: ClassVar[str] = "some data-parallel replicas have more work; unnamed: others each step"

    def apply(self, conditions: Conditions) -> None:
        world = conditions.world
        slots = world.program.slots(lambda op: op.kind == "compute" and op.phase in _PASSES)
        if self.replicas:
            conditions.stretch(slots, self._places(world), self.factor)
            return
        drawn = world.random.source("uneven", conditions.step).standard_normal(world.scenario.dp)
        shares = np.exp((self.factor - 1) * drawn)[_replica_of(world)]
        conditions.stretch(slots, everywhere(world), shares)

    def blame(self, world: World) -> Blame:
        if not self.replicas:
            return Blame("load_imbalance")
        unknown = [one for one in self.replicas if not 0 <= one < world.scenario.dp]
        if unknown:
            raise UsageError(f"{self.name}: no replica {unknown[0]}; dp={world.scenario.dp}")
        ranks = world.cluster.rank_of[self._places(world)].tolist()
        return Blame("load_imbalance", ranks=tuple(sorted(ranks)))

    def _places(self, world: World) -> Ints:
        return np.flatnonzero(np.isin(_replica_of(world), self.replicas))


_PASSES = tuple(PHASE_OF.values())


def _replica_of(world: World) -> Ints:
    """The data-parallel replica of every place."""
    per_replica = world.cluster.per_stage // world.scenario.dp
    return np.arange(world.scenario.ranks) % world.cluster.per_stage // per_replica


@dataclass(frozen=True, kw_only=True)
class NoOverlap(Fault):
    """Gradients are reduced while computation waits, instead of overlapping with it."""

    name: ClassVar[str] = "no_overlap"
    family: ClassVar[str] = "ARGUS Table 6: suboptimal comm-compute overlap"
    help: ClassVar[str] = "computation waits for every bucket of gradients, on every rank"

    def check(self, world: World) -> None:
        if world.scenario.dp == 1:
            raise UsageError(f"{self.name} needs data parallelism; this job has dp=1")

    def apply(self, conditions: Conditions) -> None:
        conditions.serial = True

    def blame(self, world: World) -> Blame:
        return Blame("code")
