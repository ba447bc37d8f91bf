"""Everything about a scenario that is the same in every step, computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.simulate import workload
from stepscope.simulate.cluster import Cluster
from stepscope.simulate.network import Network
from stepscope.simulate.noise import Random
from stepscope.simulate.plan import Plan
from stepscope.simulate.program import Op, Program
from stepscope.simulate.scenario import Scenario
from stepscope.window import Ints


@dataclass(frozen=True)
class World:
    """A scenario with its cluster, network and program."""

    scenario: Scenario

    @cached_property
    def cluster(self) -> Cluster:
        return Cluster(self.scenario)

    @cached_property
    def network(self) -> Network:
        return Network(self.cluster)

    @cached_property
    def random(self) -> Random:
        return Random(self.scenario.seed)

    @cached_property
    def program(self) -> Program:
        return workload.build(self.scenario)

    @cached_property
    def plan(self) -> Plan:
        return Plan(self.program)

    @cached_property
    def serial_plan(self) -> Plan:
        """The plan in which computation waits for every bucket of gradients."""
        serial = Plan(workload.build(self.scenario, overlap=False))
        assert [op.key for op in serial.program.ops] == [op.key for op in self.program.ops]
        return serial

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        return self.program.ops

    def members(self, op: Op) -> int:
        """How many ranks take part in a communication operator."""
        if op.kind != "collective":
            return 2
        return self._sizes[op.group]

    def together(self, op: Op, place: int) -> Ints:
        """All places that take part in a place's collective; for other operations, the place."""
        if op.kind != "collective":
            return np.array([place])
        number = self.cluster.group_of[op.group]
        return np.flatnonzero(number == number[place])

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {kind: len(next(self.cluster.members(kind))) for kind in self.cluster.kinds}

    @property
    def shape(self) -> tuple[int, int, int]:
        """`[slot, stage, rank within the stage]`."""
        return (len(self.ops), self.cluster.stages, self.cluster.per_stage)
