"""What the critical path adds to a verdict: its part of the path (ARGUS level 4), and symptoms.

Symptoms are network alarms on the hosts of a culprit whose own work holds the job up, or chance.
Paper: ARGUS (2026), section 9.5: a port that went down on one of the slow hosts was taken for the
root cause, though only computation was slow. A counter alone is never a verdict. Where the critical
path shows that the rank's own work, and not its transfers, made the steps long, the evidence says
that the event is not the cause, so that nobody repairs the network first.
Cost: the counters of the verdict's steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepscope.diagnose.finding import Evidence, Value, Verdict
from stepscope.diagnose.graph.critical_path import Path, Share, kernel_shares, shares
from stepscope.diagnose.network.counters import raised_counters
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.words.numbers import percent

NAMED = 3
"""Number of parts of the path that are named, the largest first. Our simulator."""
LEAST = 0.01
"""Smallest part of the path that is named. Our simulator."""
NETWORK = ("nic", "ib", "rdma", "roce", "port", "link")
"""Beginnings of the names of counters for adapters and cables."""


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


def with_symptoms(job: Observed, verdict: Verdict) -> Verdict:
    """The verdict with the network counters that rose on its hosts in the same steps, if any."""
    path = path_of(job, verdict) if verdict.ranks and verdict.cause != "network" else None
    if path is None or verdict.steps is None:
        return verdict
    whole = max(float(path.lasted_ns.sum()), 1.0)
    rows = path.graph.lanes.row(path.lane)
    own_work = path.own & np.isin(job.line.ranks[rows], verdict.ranks)
    own = float(path.lasted_ns[own_work].sum()) / whole
    transfers = float(path.lasted_ns[~path.own].sum()) / whole
    metrics = _alarms(job, verdict) if own >= HALF and own > transfers else []
    if not metrics:
        return verdict
    named = ", ".join(metrics)
    detail = (
        f"{named} rose on its hosts in the same steps: a symptom or a coincidence, because "
        f"{percent(own)} of the critical path is its own work and {percent(transfers)} is transfers"
    )
    values: dict[str, Value] = {"metrics": metrics, "own": own, "transfers": transfers}
    evidence = Evidence("symptoms", detail, values)
    advice = f"{verdict.advice}; {named} on its hosts is not the cause"
    return replace(verdict, evidence=(*verdict.evidence, evidence), advice=advice)


def _alarms(job: Observed, verdict: Verdict) -> list[str]:
    """Network counters that stood out on the verdict's hosts in its steps."""
    assert verdict.steps is not None
    steps = job.line.within(verdict.steps)
    ranks = {rank for host in job.window.job.hosts if host.name in verdict.hosts
             for rank in host.ranks} | set(verdict.ranks)  # fmt: skip
    of_hosts = np.isin(job.line.ranks, sorted(ranks))
    return sorted({one.metric for one in raised_counters(job, steps)
                   if one.metric.startswith(NETWORK) and (one.rows & of_hosts).any()})  # fmt: skip
