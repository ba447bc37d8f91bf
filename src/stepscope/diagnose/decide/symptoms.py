"""Network alarms on the hosts of a culprit whose own work holds the job up: symptoms, or chance.

Paper: ARGUS (2026), section 9.5: a port that went down on one of the slow hosts was taken for the
root cause, though only computation was slow. A counter alone is never a verdict. Where the critical
path shows that the rank's own work, and not its transfers, made the steps long, the evidence says
that the event is not the cause, so that nobody repairs the network first.
Cost: the counters of the verdict's steps.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.diagnose.decide.on_path import path_of, percent
from stepscope.diagnose.finding import Evidence, Value, Verdict
from stepscope.diagnose.network.counters import raised_counters
from stepscope.diagnose.observed import Observed

NETWORK = ("nic", "ib", "rdma", "roce", "port", "link")
"""Beginnings of the names of counters for adapters and cables."""
MOSTLY = 0.5
"""Own work must make up this part of the critical path, and more than all transfers. Our
simulator."""


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
    metrics = _alarms(job, verdict) if own >= MOSTLY and own > transfers else []
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
