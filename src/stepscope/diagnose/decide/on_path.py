"""Adds a verdict's part of the critical path as evidence (ARGUS level 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepscope.diagnose.finding import Evidence, Verdict
from stepscope.diagnose.graph.critical_path import Path, Share, kernel_shares, shares
from stepscope.diagnose.observed import Observed

NAMED = 3
"""Number of parts of the path that are named, the largest first. Our simulator."""
LEAST = 0.01
"""Smallest part of the path that is named. Our simulator."""


def with_path(job: Observed, verdict: Verdict) -> Verdict:
    """The verdict with the part of the critical path that its ranks or transfers make up."""
    path = path_of(job, verdict)
    if path is None:
        return verdict
    own = [one for one in shares(job.window, path) if _is_its(verdict, one)]
    named = [one for one in _of_a_kind(own) if one.part >= LEAST][:NAMED]
    part = sum(one.part for one in own)
    text = f"{percent(part)} of the critical path"
    text += f" ({', '.join(f'{percent(one.part)} {one.what}' for one in named)})" if named else ""
    steps = np.unique(path.graph.lanes.at(path.lane)).size
    whose = "transfers" if verdict.cause == "network" else "own work"
    detail = f"its {whose} is {text}, over {steps} step{'s' * (steps != 1)}"
    kernels = _kernels(job, path, verdict)
    detail += f"; mostly {', '.join(kernels)}" if kernels else ""
    evidence = Evidence("critical-path", detail, {"part": part, "steps": steps})
    return replace(verdict, evidence=(*verdict.evidence, evidence))


def path_of(job: Observed, verdict: Verdict) -> Path | None:
    """The critical paths of its steps; None where none is known, or it names no rank."""
    if verdict.steps is None or verdict.kind != "slowdown" or job.path is None:
        return None
    if not verdict.ranks and verdict.cause != "network":
        return None
    columns = job.path.graph.lanes.columns
    inside = job.line.within(verdict.steps)[columns]
    path = job.path.of_steps(np.flatnonzero(inside))
    return path if path.lane.size else None


def _is_its(verdict: Verdict, one: Share) -> bool:
    if verdict.cause == "network":
        return one.rank is None and verdict.group in (None, one.group)
    return one.rank in verdict.ranks


def _of_a_kind(found: Sequence[Share]) -> list[Share]:
    """Equal work of several ranks, or equal operators of several groups, as one."""
    parts: dict[str, float] = {}
    for one in found:
        parts[one.what] = parts.get(one.what, 0.0) + one.part
    return sorted((Share(None, what, None, part) for what, part in parts.items()),
                  key=lambda one: -one.part)  # fmt: skip


def _kernels(job: Observed, path: Path, verdict: Verdict) -> list[str]:
    """The kernels that make up most of the first culprit's part of the path."""
    if not verdict.ranks or verdict.cause == "network":
        return []
    row = int(job.line.rows(np.array(verdict.ranks[:1]))[0])
    found = kernel_shares(job.window, path, row)
    return [one.what for one in found if one.part >= LEAST][:NAMED]


def percent(part: float) -> str:
    return f"{100 * part:.0f} %"
