"""Plays a scenario from its first step to its last, or to the one that never ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.simulate.conditions import Conditions
from stepscope.simulate.costs import Pricing
from stepscope.simulate.engine import NEVER, play
from stepscope.simulate.faults.base import Fault
from stepscope.simulate.record import Recorder
from stepscope.simulate.record.moment import EPOCH_NS, Moment
from stepscope.simulate.scenario import Scenario
from stepscope.simulate.truth import FaultTruth, Truth
from stepscope.simulate.world import World
from stepscope.trace import Job
from stepscope.window import Ints, Window

WATCHED_STEPS = 20
WATCHED_NS = 60_000_000_000
"""Collectors look on for so long after a job has hung: a minute, or twenty of its steps."""

Progress = Callable[[int, int], None]
"""Told the steps played and all steps there are to play."""


@dataclass(frozen=True)
class Simulation:
    """A job as its collectors saw it, and what is really wrong with it."""

    window: Window
    truth: Truth

    @property
    def job(self) -> Job:
        return self.window.job


def simulate(scenario: Scenario, progress: Progress | None = None) -> Simulation:
    """Plays the scenario, and once more without each of its faults to learn what that one costs.

    Raises:
        UsageError: a fault does not fit the job.
    """
    world = World(scenario)
    for fault in scenario.faults:
        fault.check(world)
    count = _Count(progress, scenario.steps * (1 + len(scenario.faults)))
    recorder = Recorder(world)
    done: list[Ints] = []
    until_ns = 0
    for moment in moments(world, scenario.faults):
        until_ns = watched_until(moment, done)
        recorder.add(moment, until_ns)
        done.append(moment.times.done)
        count.next()
    truth = _truth(world, done, count)
    job = replace(world.cluster.job(), observed_until_ns=EPOCH_NS + until_ns)
    return Simulation(Window(job, recorder.tables(until_ns)), truth)


def moments(world: World, faults: Sequence[Fault]) -> Iterator[Moment]:
    """The steps of a job, one by one. A step that never ends is the last."""
    pricing, cluster = Pricing(world), world.cluster
    start: Ints = np.zeros((cluster.stages, cluster.per_stage), np.int64)
    for step in range(world.scenario.steps):
        conditions = Conditions(world, step)
        for fault in faults:
            if fault.active(step, world.random):
                fault.apply(conditions)
        costs = pricing.costs(conditions)
        plan = world.serial_plan if conditions.serial else world.plan
        times = play(plan, cluster.grid, costs, start)
        stalls = (*pricing.interruptions(step), *conditions.stalls)
        moment = Moment(world, step, conditions, costs, times, start, stalls)
        yield moment
        if not moment.finished:
            return
        start = times.done + pricing.between_ns(step).reshape(start.shape)


def watched_until(moment: Moment, done: Sequence[Ints]) -> int:
    """Until when collectors had looked: to the end of the step, or for a while if it has none."""
    if moment.finished:
        return int(moment.times.done.max())
    typical = float(np.median(np.diff([int(one.max()) for one in done]))) if len(done) > 1 else 0.0
    last = int(moment.start.max())
    return last + max(WATCHED_NS, int(WATCHED_STEPS * typical))


@dataclass
class _Count:
    """How much of the work is done."""

    progress: Progress | None
    total: int
    played: int = 0

    def next(self) -> None:
        self.played += 1
        if self.progress is not None:
            self.progress(self.played, self.total)


def _truth(world: World, done: Sequence[Ints], count: _Count) -> Truth:
    faults = world.scenario.faults
    found = [_truth_of(world, fault, done, _without(world, fault, len(done), count))
             for fault in faults]  # fmt: skip
    return Truth(world.scenario.name, world.scenario.seed, tuple(found))


def _without(world: World, fault: Fault, steps: int, count: _Count) -> list[Ints]:
    """When steps end without one of the faults."""
    rest = [one for one in world.scenario.faults if one is not fault]
    healthy = []
    for moment in moments(world, rest):
        healthy.append(moment.times.done)
        count.next()
        if len(healthy) == steps:
            break
    return healthy


def _truth_of(
    world: World, fault: Fault, done: Sequence[Ints], healthy: Sequence[Ints]
) -> FaultTruth:
    blame = fault.blame(world)
    active = [step for step in range(len(done)) if fault.active(step, world.random)]
    slowdown, lost_ns = _cost(done, healthy, active) if blame.kind == "slowdown" else (None, None)
    return FaultTruth(
        fault.name, fault.family, blame.kind, blame.cause, blame.ranks, blame.hosts, blame.devices,
        blame.phase, blame.function, (active[0], active[-1]) if active else None, len(active),
        slowdown, lost_ns, fault.parameters(),
    )  # fmt: skip


def _cost(
    done: Sequence[Ints], healthy: Sequence[Ints], active: Sequence[int]
) -> tuple[float | None, int | None]:
    """How many times longer steps took in which a fault was there, and what it cost in all.

    Only steps that both jobs finished are compared.
    """
    ends = [(int(a.max()), int(b.max())) for a, b in zip(done, healthy, strict=False)]
    ends = [(a, b) for a, b in ends if a < NEVER and b < NEVER]
    if not ends:
        return None, None
    took = np.diff(np.array([(0, 0), *ends]), axis=0)[[one for one in active if one < len(ends)]]
    slowdown = float(took[:, 0].sum() / took[:, 1].sum()) if len(took) else None
    return slowdown, ends[-1][0] - ends[-1][1]
