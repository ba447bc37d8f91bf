"""Keeps to the job itself what was found in it and in the healthy steps before it.

What ends in the healthy steps is no fault of this job. What begins there, by a few steps of noise
or because it is as slow in both, is shown from this job's first step on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from stepscope.diagnose.finding import Finding, Span, Unsteady, Verdict
from stepscope.diagnose.views.timeline import Timeline

Kind = TypeVar("Kind", bound=Finding)


def of_job(line: Timeline, findings: Iterable[Kind]) -> list[Kind]:
    """Those that do not end before the job begins, from its first step on."""
    first, begin_ns = int(line.steps[line.first_own]), int(line.begins_ns[line.first_own])
    return [replace(one, steps=_from(one.steps, first), lost_of=_from(one.lost_of, first),
                    time_ns=_from(one.time_ns, begin_ns))
            for one in findings if one.steps is None or one.steps[1] >= first]  # fmt: skip


def unsteady_in_job(line: Timeline, found: Iterable[Unsteady]) -> list[Unsteady]:
    """Long steps of the job itself, and rises that are there in it."""
    known = []
    for one in found:
        spikes = tuple(column for column in one.spikes if column >= line.first_own)
        split = None if one.split is None else max(one.split, line.first_own)
        if spikes or split is not None:
            known.append(replace(one, spikes=spikes, split=split))
    return known


def advised(line: Timeline, verdict: Verdict) -> Verdict:
    """With the healthy job, and not the first steps of this one, as what to compare with."""
    first = f"before step {line.steps[line.first_own]}"
    return replace(verdict, advice=verdict.advice.replace(first, "of the healthy job"))


def _from(span: Span | None, first: int) -> Span | None:
    return None if span is None else (max(span[0], first), max(span[1], first))
