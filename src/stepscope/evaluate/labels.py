"""Operators of irregular steps, each with what it is: normal, or longer because of a known fault.

Holmes (section 5.1) lets people set these labels, for a few hours of each training. Here the truth
sets them, for what Holmes judges: the operators of irregular steps.

- Simulated jobs are simulated again without their faults: the same noise, the same operators. An
  operator is abnormal if the fault made it longer by a tenth and by 0.2 % of a step, the least
  that the robust rule calls abnormal (`diagnose.graph.abnormal`).
- Recorded jobs with a `truth.json` cannot be repeated. An operator is abnormal if it lasted that
  much longer, while the fault was active, than ever without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepscope.diagnose.detect.published.holmes import Case as Judged
from stepscope.diagnose.detect.published.holmes import by_rule, published_case
from stepscope.diagnose.detect.published.holmes_features import FEATURES, Log, iteration_ns
from stepscope.diagnose.graph.abnormal import RATIO, SHARE
from stepscope.diagnose.graph.comm_graph import comm_graph
from stepscope.diagnose.observed import Observed
from stepscope.simulate import Scenario, simulate
from stepscope.window import Floats, Mask, Window

MOST = 6_000
"""Samples of one job, so that large jobs do not outweigh the others. Our choice."""

FOR_GOOD = 2**62
"""The last step of a fault that stays."""

Span = tuple[int, int]
"""First and last step."""


@dataclass(frozen=True)
class Labelled:
    """Operators of one job."""

    name: str
    features: Floats
    """`[sample, feature]`"""
    step_ns: float
    """The mean iteration time of the job's regular steps."""
    abnormal: Mask
    by_rule: Mask
    """What the robust rule says."""


def of_scenario(scenario: Scenario, name: str) -> Labelled | None:
    """A simulated job; None if none of its steps is irregular, or if it hangs."""
    played = simulate(scenario)
    if any(fault.kind != "slowdown" for fault in played.truth.faults):
        return None
    case = published_case(Observed(played.window))
    if case is None:
        return None
    usual = case.graph.elapsed_ns
    if scenario.faults:
        twin = Observed(simulate(replace(scenario, faults=())).window)
        graph = comm_graph(twin.window, twin.line, case.graph.columns)
        if graph is None or not np.array_equal(graph.rank, case.graph.rank):
            return None
        usual = graph.elapsed_ns
    return _labelled(name, case, longer(case.graph.elapsed_ns, usual, _step_ns(case)))


def of_recording(window: Window, faults: Sequence[Span], name: str) -> Labelled | None:
    """A recorded job whose faults were active in these steps; None if none of its steps is
    irregular, or if the faults were always active."""
    case = published_case(Observed(window))
    if case is None:
        return None
    steps = case.job.line.steps[case.graph.columns]
    active = np.zeros(steps.size, np.bool_)
    for first, last in faults:
        active |= (steps >= first) & (steps <= last)
    if active.all():
        return None
    lasted = case.graph.elapsed_ns
    without = np.where(np.isfinite(lasted) & ~active, lasted, -np.inf).max(axis=1)
    usual = np.where(np.isfinite(without), without, np.nan)[:, None]
    return _labelled(name, case, longer(lasted, usual, _step_ns(case)) & active)


def fault_spans(truth: Mapping[str, Any]) -> list[Span]:
    """The steps of each fault, from what `simulate` or the lab wrote beside a job.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    return [_span(fault) for fault in truth["faults"] if fault.get("steps", True) is not None]


def _span(fault: Mapping[str, Any]) -> Span:
    if "steps" in fault:
        first, last = fault["steps"]
    else:
        first, last = fault["when"]["first"], fault["when"]["last"]
    return int(first), FOR_GOOD if last is None else int(last)


def longer(lasted_ns: Floats, usual_ns: Floats, step_ns: float) -> Mask:
    """Which operators lasted longer than usual, by enough to be called abnormal."""
    return np.asarray(lasted_ns - usual_ns > np.maximum(RATIO * usual_ns, SHARE * step_ns))


def _step_ns(case: Judged) -> float:
    return case.job.line.typical_ns


def _labelled(name: str, case: Judged, abnormal: Mask) -> Labelled:
    """A random sample of the operators of irregular steps; the same in every run."""
    graph, irregular = case.graph, case.irregular
    rule = by_rule(case)
    features, which = [np.zeros((0, len(FEATURES)))], [np.zeros((0, 2), np.bool_)]
    for row in range(len(graph.line.ranks)):
        at = np.ix_(graph.log(row), irregular)
        table = Log.of(graph, row).features(irregular)
        known = np.isfinite(table[:, :, 0])
        features.append(table[known])
        which.append(np.stack((abnormal[at][known], rule[at][known]), axis=1))
    table, marks = np.concatenate(features), np.concatenate(which)
    kept = np.random.default_rng(len(table)).permutation(len(table))[:MOST]
    step_ns = iteration_ns(graph.line.job_period_ns[graph.columns[case.regular]])
    return Labelled(name, table[kept], step_ns, marks[kept, 0], marks[kept, 1])
