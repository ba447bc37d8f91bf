"""Computes the steps of a job, many of them side by side.

A step's timing depends only on how far apart its hosts are when it begins. That is nearly always
decided by the end of the previous step, after the last collective of all ranks, whatever happened
earlier. So steps are computed side by side from a guess of how far apart the hosts are. Steps whose
guess the previous step confirms are exact, to the nanosecond; the others are computed again from
what is known by then. The first of them is always right, so this terminates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.simulate.conditions import Conditions
from stepscope.simulate.costs import Pricing
from stepscope.simulate.engine import NEVER, Costs, Times, play
from stepscope.simulate.faults.base import Fault
from stepscope.simulate.plan import Plan
from stepscope.simulate.record.moment import Moment
from stepscope.simulate.world import World
from stepscope.window import Ints

ROW = 512
"""numpy adds this many numbers in little more than the time of the call; longer rows cost more."""


def moments(
    pricing: Pricing, faults: Sequence[Fault], first: int = 0, start: Ints | None = None
) -> Iterator[Moment]:
    """Computes the steps of a job from `first` on, whose hosts begin at `start`.

    A step that never ends is the last.
    """
    world, cluster = pricing.world, pricing.world.cluster
    if start is None:
        start = np.zeros((cluster.stages, cluster.per_stage), np.int64)
    at_once = max(1, ROW // cluster.per_stage)
    for some in _runs(_priced(pricing, faults, first), at_once):
        for step, (begun, times) in zip(some, _played(world, some, start), strict=True):
            stalls = (*pricing.interruptions(step.number), *step.conditions.stalls)
            yield Moment(world, step.number, step.conditions, step.costs, times, begun, stalls)
        if some[-1].endless and not (times.done < NEVER).all():
            return
        start = times.done + some[-1].pause


@dataclass(frozen=True)
class _Step:
    """A step before it is computed."""

    number: int
    conditions: Conditions
    costs: Costs
    pause: Ints
    """The pause between it and the next step, `[stage, rank within the stage]`."""
    endless: bool
    """Whether any operation in it never ends."""

    @property
    def plan(self) -> Plan:
        world = self.conditions.world
        return world.serial_plan if self.conditions.serial else world.plan


def _priced(pricing: Pricing, faults: Sequence[Fault], first: int) -> Iterator[_Step]:
    world = pricing.world
    for number in range(first, world.scenario.steps):
        conditions = Conditions(world, number)
        for fault in faults:
            if fault.active(number, world):
                fault.apply(conditions)
        costs = pricing.costs(conditions)
        pause = pricing.between_ns(number).reshape(world.shape[1:])
        yield _Step(number, conditions, costs, pause, costs.endless)


def _runs(steps: Iterator[_Step], at_once: int) -> Iterator[list[_Step]]:
    """Steps that can be computed side by side: with the same plan and an end, or a single one."""
    some: list[_Step] = []
    for step in steps:
        if some and (step.endless or step.plan is not some[0].plan):
            yield some
            some = []
        some.append(step)
        if step.endless or len(some) == at_once:
            yield some
            some = []
    if some:
        yield some


def _played(world: World, some: Sequence[_Step], start: Ints) -> Iterator[tuple[Ints, Times]]:
    """When the hosts began each step, and what happened in it."""
    lasting = _side_by_side([step.costs.lasting for step in some])
    issuing = _side_by_side([step.costs.issuing for step in some])
    pause = _side_by_side([step.pause for step in some])
    since = int(start.min()) if len(some) > 1 else 0
    apart = np.repeat((start - since)[:, None], len(some), axis=1)
    at = 0
    while at < len(some):
        costs = Costs(lasting[:, :, at:], issuing[:, :, at:])
        times = play(some[0].plan, world.cluster.grid, costs, apart[:, at:])
        ready = times.done + pause[:, at:]
        earliest = ready.min(axis=(0, 2))
        following = (ready - earliest[:, None])[:, :-1]
        for right in range(1 + _agreeing(apart[:, at + 1 :], following)):
            yield apart[:, at] + since, times.of_step(right, since)
            since += int(earliest[right])
            at += 1
        apart[:, at:] = following[:, right:]


def _side_by_side(tables: Sequence[Ints]) -> Ints:
    """Puts the axis of steps before the axis of ranks."""
    if len(tables) == 1:
        return np.expand_dims(tables[0], -2)
    return np.stack(tables, axis=-2)


def _agreeing(guess: Ints, known: Ints) -> int:
    """The number of leading steps whose guess is right."""
    wrong = np.flatnonzero((guess != known).any(axis=(0, 2)))
    return int(wrong[0]) if len(wrong) else guess.shape[1]
