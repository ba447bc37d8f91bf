"""The ranks and steps to show in one timeline of a job.

Ranks: the culprits, some of their peers, and the ranks on the critical path. Steps: the longest
step of the worst verdict, with its neighbours; for a healthy job, a step of ordinary length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.finding import Diagnosis, Span, Verdict
from stepscope.diagnose.graph.critical_path import critical_path, shares
from stepscope.diagnose.graph.step_graph import step_graph
from stepscope.diagnose.observed import Observed
from stepscope.window import Window

MOST_CULPRITS = 8
"""As many ranks as a host has devices; a person cannot compare more. Our simulator."""
PEERS = 2
"""Peers of each culprit: a single one may be unusual itself. Our simulator."""
ON_PATH = 8
"""Further ranks, those with the largest share of the critical path. Our simulator."""
LEAST_PART = 0.02
"""A rank with a smaller share of the critical path costs less than `verdict.LEAST_COST`. Our
simulator."""
BESIDE = 1
"""Steps shown before and after the worst one. Our simulator."""


@dataclass(frozen=True)
class Focus:
    """The ranks and steps to draw; `steps` is None if no steps were recorded."""

    ranks: tuple[int, ...]
    steps: Span | None


def focus(window: Window, diagnosis: Diagnosis) -> Focus:
    """The ranks and steps to show of a window that is clean and on one clock."""
    job = Observed(window)
    worst = diagnosis.verdicts[0] if diagnosis.verdicts else None
    steps = _steps(diagnosis, worst)
    blamed = [rank for one in diagnosis.verdicts for rank in _named(window, one)]
    culprits = list(dict.fromkeys(blamed))[:MOST_CULPRITS]
    beside = [peer for rank in culprits for peer in _peers(job, rank, set(blamed), worst)]
    on_path = list(dict.fromkeys(_on_path(job, steps)))[:ON_PATH]
    ranks = {*culprits, *beside, *on_path} or set(window.ranks[:ON_PATH])
    return Focus(tuple(sorted(ranks & set(window.ranks))), steps)


def _named(window: Window, verdict: Verdict) -> tuple[int, ...]:
    """The ranks that a verdict blames, or the members of the group that it blames."""
    group = window.job.group(verdict.group) if verdict.group is not None else None
    return verdict.ranks or (group.ranks if group is not None else ())


def _steps(diagnosis: Diagnosis, worst: Verdict | None) -> Span | None:
    """The verdict's longest step, or a step of ordinary length, and its neighbours."""
    steps = np.array(diagnosis.series.steps, np.int64)
    lasted = np.array(diagnosis.series.duration_ns, np.float64)
    if not steps.size:
        return worst.steps if worst is not None else None
    at = int(np.argmin(np.abs(lasted - np.median(lasted))))
    if worst is not None and worst.steps is not None:
        inside = np.flatnonzero((steps >= worst.steps[0]) & (steps <= worst.steps[1]))
        if inside.size:
            at = int(inside[-1] if worst.kind == "hang" else inside[np.argmax(lasted[inside])])
    return int(steps[max(at - BESIDE, 0)]), int(steps[min(at + BESIDE, steps.size - 1)])


def _peers(job: Observed, rank: int, blamed: set[int], worst: Verdict | None) -> list[int]:
    """The nearest peers of a rank that are not blamed."""
    row = int(job.line.rows(np.array([rank]))[0])
    phase = worst.phase if worst is not None else None
    peers = job.line.ranks[job.peers_of(row, phase)].tolist()
    healthy = [one for one in peers if one not in blamed]
    return sorted(healthy, key=lambda one: abs(one - rank))[:PEERS]


def _on_path(job: Observed, steps: Span | None) -> Iterator[int]:
    """Ranks by their share of the critical path, the largest first."""
    if steps is None:
        return
    chosen = job.line.within(steps)
    graph = step_graph(job.window, job.line, np.flatnonzero(chosen))
    if graph is None:
        return
    for one in shares(job.window, critical_path(graph)):
        if one.rank is not None and one.part >= LEAST_PART:
            yield one.rank
