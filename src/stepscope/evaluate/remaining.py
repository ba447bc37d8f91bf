"""Which of a job's faults are left in a recording from which data was removed, and what they cost.

A cut leaves only the steps that it keeps, and a culprit that was not recorded cannot be named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepscope.evaluate.score import is_costly
from stepscope.simulate import FaultTruth, Scenario, Truth
from stepscope.simulate.world import World
from stepscope.window import Window


@dataclass(frozen=True)
class Remaining:
    """What can still be found out."""

    truth: Truth
    """A fault that was not active in the steps that are left has no steps."""
    cost: float | None
    """The share of the time since the fault began that the most expensive fault costs, in the steps
    that are left; 1 for a hang. None: no fault is left that deserves a verdict."""
    unrecorded: bool
    """Whether all culprits of all these faults are ranks without a row."""


def active_steps(scenario: Scenario) -> list[list[int]]:
    """The steps in which each fault of the scenario is active."""
    world = World(scenario)
    return [[step for step in range(scenario.steps) if fault.active(step, world)]
            for fault in scenario.faults]  # fmt: skip


def remaining(
    truth: Truth, active: Sequence[Sequence[int]], window: Window, steps: tuple[int, int]
) -> Remaining:
    """What is left of the faults in this window.

    Args:
        truth: all faults of the job.
        active: the steps in which each of them is active.
        window: what is left of the recording.
        steps: the first and the last step that the collectors observed.
    """
    first, last = steps
    left = [[step for step in every if first <= step <= last] for every in active]
    faults = tuple(replace(fault, steps=(some[0], some[-1]) if some else None)
                   for fault, some in zip(truth.faults, left, strict=True))  # fmt: skip
    costs = [(fault, _cost(fault, len(some), last - some[0] + 1) if some else None)
             for fault, some in zip(faults, left, strict=True)]  # fmt: skip
    truth = replace(truth, faults=faults)
    return Remaining(truth, _most(costs), _unrecorded(truth, window))


def _cost(fault: FaultTruth, active: int, steps: int) -> float | None:
    """The share of the time of all `steps` that is lost in the `active` ones, which are longer."""
    share = fault.lost_fraction
    if share is None or share >= 1.0:
        return share
    longer = 1.0 / (1.0 - share)
    return share * active * longer / (steps - active + active * longer)


def _most(costs: Sequence[tuple[FaultTruth, float | None]]) -> float | None:
    known = [1.0 if fault.kind == "hang" else cost or 0.0
             for fault, cost in costs if is_costly(fault)]  # fmt: skip
    return max(known, default=None)


def _unrecorded(truth: Truth, window: Window) -> bool:
    recorded = set(window.ranks)
    culprits = [set(fault.ranks) for fault in truth.faults if is_costly(fault)]
    return bool(culprits) and all(ranks and not ranks & recorded for ranks in culprits)
