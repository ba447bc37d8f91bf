"""Small scenarios for the tests of the simulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from stepscope.simulate import Noise, Parallelism, Scenario, Workload, parse_fault
from stepscope.simulate.conditions import Conditions
from stepscope.simulate.costs import Pricing
from stepscope.simulate.engine import Costs, Times, play
from stepscope.simulate.world import World


def a_scenario(
    *faults: str, ranks: int = 8, steps: int = 4, quiet: bool = False, kind: str = "dense",
    seed: int = 0, **degrees: Any,
) -> Scenario:  # fmt: skip
    """A job of few ranks; `quiet`: without any noise."""
    degrees = {"microbatches": 4, **degrees}
    return Scenario(
        ranks=ranks, steps=steps, seed=seed, parallelism=Parallelism(**degrees),
        workload=Workload(kind=kind), noise=Noise.none() if quiet else Noise(),  # type: ignore[arg-type]
        faults=tuple(map(parse_fault, faults)),
    )  # fmt: skip


def without_faults(scenario: Scenario) -> Scenario:
    return replace(scenario, faults=())


def a_step(scenario: Scenario, step: int = 0) -> tuple[World, Costs, Times]:
    """One step of a job, all hosts beginning at time 0."""
    world = World(scenario)
    conditions = Conditions(world, step)
    for fault in scenario.faults:
        if fault.active(step, world):
            fault.apply(conditions)
    costs = Pricing(world).costs(conditions)
    start = np.zeros((world.cluster.stages, world.cluster.per_stage), np.int64)
    plan = world.serial_plan if conditions.serial else world.plan
    return world, costs, play(plan, world.cluster.grid, costs, start)
