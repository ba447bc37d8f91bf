"""Simulates a scenario from the first step to the last, or to the step that never ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.simulate.cost import Cost, Span, cost_of
from stepscope.simulate.costs import Pricing
from stepscope.simulate.faults.base import Fault
from stepscope.simulate.moments import moments
from stepscope.simulate.record import Recorder
from stepscope.simulate.record.moment import EPOCH_NS, Moment
from stepscope.simulate.scenario import Scenario
from stepscope.simulate.truth import FaultTruth, Truth
from stepscope.simulate.world import World
from stepscope.trace import Job
from stepscope.window import Window

WATCHED_STEPS = 20
WATCHED_NS = 60_000_000_000
"""How long collectors keep recording after a job has hung: a minute, or twenty of its steps."""

Progress = Callable[[int, int], None]
"""Called with the number of steps simulated so far, and the number of all steps to simulate."""


@dataclass(frozen=True)
class Simulation:
    """What the collectors recorded of a job, and its known faults."""

    window: Window
    truth: Truth

    @property
    def job(self) -> Job:
        return self.window.job


def simulate(scenario: Scenario, progress: Progress | None = None) -> Simulation:
    """Simulates the scenario, and again without each of its faults to learn what that fault costs.

    A job of samples that vary in length is simulated once more with equal ones.

    Raises:
        UsageError: a fault does not fit the job.
    """
    pricing = prepare(scenario)
    recorder = Recorder(pricing.world)
    until_ns = 0

    def record(moment: Moment, watched_until_ns: int) -> None:
        nonlocal until_ns
        until_ns = watched_until_ns
        recorder.add(moment, until_ns)

    truth = _play(pricing, record, progress)
    job = replace(pricing.world.cluster.job(), observed_until_ns=EPOCH_NS + until_ns)
    return Simulation(Window(job, recorder.tables(until_ns)), truth)


def truth_of(scenario: Scenario, progress: Progress | None = None) -> Truth:
    """The truth that `simulate` returns, without recording tables."""
    return _play(prepare(scenario), lambda moment, until_ns: None, progress)


def prepare(scenario: Scenario) -> Pricing:
    """Checks that the faults fit, and prepares what is the same in every step.

    Raises:
        UsageError: a fault does not fit the job.
    """
    world = World(scenario)
    for fault in scenario.faults:
        fault.check(world)
    return Pricing(world)


def _play(
    pricing: Pricing, record: Callable[[Moment, int], None], progress: Progress | None
) -> Truth:
    """Records every step, with the time until which collectors watched it."""
    scenario = pricing.world.scenario
    varies = scenario.workload.kind == "variable"
    count = _Count(progress, scenario.steps * (1 + len(scenario.faults) + varies))
    played: list[Span] = []
    for moment in moments(pricing, scenario.faults):
        record(moment, watched_until(moment, [one.lasted_ns for one in played]))
        played.append(Span(moment.start, moment.times.done))
        count.add(1)
    faults = [_truth_of(pricing, fault, played, count) for fault in scenario.faults]
    inherent = (_of_lengths(scenario, played, count),) if varies else ()
    return Truth(scenario.name, scenario.seed, tuple(faults), inherent)


def watched_until(moment: Moment, lasted_ns: Sequence[int]) -> int:
    """How long collectors watched: until the step ended, or for a while if it never ends.

    `lasted_ns` are the durations of the steps before.
    """
    if moment.finished:
        return int(moment.times.done.max())
    typical = float(np.median(lasted_ns)) if lasted_ns else 0.0
    last = int(moment.start.max())
    return last + max(WATCHED_NS, int(WATCHED_STEPS * typical))


@dataclass
class _Count:
    """Reports the progress."""

    progress: Progress | None
    total: int
    played: int = 0

    def add(self, steps: int) -> None:
        self.played += steps
        if self.progress is not None:
            self.progress(self.played, self.total)


def _truth_of(pricing: Pricing, fault: Fault, played: Sequence[Span], count: _Count) -> FaultTruth:
    world, blame = pricing.world, fault.blame(pricing.world)
    active = [step for step in range(len(played)) if fault.active(step, world)]
    cost = Cost(None, None, None)
    if blame.kind == "slowdown":
        cost = cost_of(played, _without(pricing, fault, played, active, count), active)
    return FaultTruth(
        fault.name, fault.family, blame.kind, blame.cause, blame.ranks, blame.hosts, blame.devices,
        blame.phase, blame.function, (active[0], active[-1]) if active else None, len(active),
        cost.slowdown, cost.lost_ns, fault.parameters(), cost.lost_fraction,
    )  # fmt: skip


def _of_lengths(scenario: Scenario, played: Sequence[Span], count: _Count) -> FaultTruth:
    """What the job loses because its samples differ in length: priced by one without that."""
    even = replace(scenario, workload=replace(scenario.workload, shape_spread=0.0))
    equal: list[Span] = []
    for moment in moments(prepare(even), even.faults):
        equal.append(Span(moment.start, moment.times.done))
        count.add(1)
    active = range(len(played))
    cost = cost_of(played, equal, active)
    return FaultTruth(
        "variable", "samples of unequal length", "slowdown", "load_imbalance", (), (), (), None,
        None, (0, len(played) - 1), len(active), cost.slowdown, cost.lost_ns,
        {"shape_spread": scenario.workload.shape_spread}, cost.lost_fraction,
    )  # fmt: skip


def _without(
    pricing: Pricing, fault: Fault, played: Sequence[Span], active: Sequence[int], count: _Count
) -> list[Span]:
    """The same job without one of its faults; until the fault's first step nothing differs."""
    first = active[0] if active else len(played)
    healthy = list(played[:first])
    count.add(first)
    rest = [one for one in pricing.world.scenario.faults if one is not fault]
    if first < len(played):
        for moment in moments(pricing, rest, first, played[first].start):
            healthy.append(Span(moment.start, moment.times.done))
            count.add(1)
            if len(healthy) == len(played):
                break
    return healthy
