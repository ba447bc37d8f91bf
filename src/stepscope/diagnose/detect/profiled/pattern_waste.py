"""Findings about time that all ranks lose, by profiled steps: in which steps, and how certain."""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.account.belief import likely, odds
from stepscope.diagnose.detect.steps.step_time import regression
from stepscope.diagnose.finding import Cause, Device, Value, Waste
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.views.patterns import Patterns
from stepscope.diagnose.views.peers import stage_numbers
from stepscope.window import Ints

METHOD = "common-patterns"
SURE_BITS = 12.0
"""Evidence where calls or a learned range show it. Our choice."""


def wasted(
    job: Observed, window: Patterns, cause: Cause, loss: float, bits: float, says: str,
    detail: str, function: str | None = None, kernels: tuple[str, ...] = (),
    values: dict[str, Value] | None = None, devices: tuple[Device, ...] = (),
    ranks: tuple[int, ...] = (), method: str = METHOD,
) -> Waste:  # fmt: skip
    """A finding about all ranks, or some, in the steps that are like the profiled ones."""
    sure, line, first = odds(bits, loss), job.line, since(job, window)
    steps, time_ns, step_ns = window.steps, window.time_ns, window.step_ns or 0.0
    if first is not None:
        steps, time_ns = line.span(first, len(line.steps)), line.span_ns(first, len(line.steps))
        step_ns = line.typical_ns
        says += line.since(first)
    return Waste(
        method, cause, detail, ranks, function=function, kernels=kernels, devices=devices,
        steps=steps, time_ns=time_ns, slowdown=1 / max(1 - loss, 0.01), lost_ns=loss * step_ns,
        lost_fraction=loss, score=sure, says=says,
        victims=len(line.ranks) - len(ranks) if ranks else 0,
        values={"bits": bits, "lost_fraction": loss, **(values or {})},
        decisions=(likely(sure, bits),),
    )  # fmt: skip


def since(job: Observed, window: Patterns) -> int | None:
    """The column since which steps take as long as in the window; None where it is not known.

    If the step time never rose, it has always been so.
    """
    line = job.line
    if window.steps is None or len(line.steps) <= line.warm_up:
        return None
    first = onset(job)
    return first if int(line.steps[first]) <= window.steps[1] else None


def onset(job: Observed) -> int:
    """The column of the last rise of the step time; that after the warm-up where there is none."""
    change = regression(job.line.job_period_ns[job.line.warm_up :])
    return job.line.warm_up + (0 if change is None else change.split)


def windows_now(job: Observed) -> tuple[Patterns, ...]:
    """The windows since the step time last rose, or else all."""
    if not len(job.line.steps) or not job.patterns:
        return job.patterns
    first = int(job.line.steps[onset(job)])
    late = tuple(one for one in job.patterns if one.steps is None or one.steps[1] >= first)
    return late or job.patterns[-1:]


def roles(job: Observed) -> list[Ints]:
    """Rows of ranks that run the same program: those of one pipeline stage, or all."""
    number = stage_numbers(job.window, job.line.ranks)
    return [np.flatnonzero(number == one) for one in np.unique(number)]
