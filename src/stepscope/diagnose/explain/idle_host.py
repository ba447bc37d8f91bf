"""A culprit's reason, with the function that kept its host while its device ran dry (level 5)."""

from __future__ import annotations

from dataclasses import replace

from stepscope.diagnose.explain.idle import Idle, while_idle
from stepscope.diagnose.explain.reason import Reason
from stepscope.diagnose.finding import Cause, Evidence
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.views.stacks import LOADER, Samples, compiles

OF_HOSTS = ("host", "compute", "unknown")
"""Causes that may follow from elimination: then a function that was seen says more."""


def with_idle(job: Observed, samples: Samples | None, one: Suspect, reason: Reason) -> Reason:
    """The reason with what stacks show of the times when nothing ran; they may prove a cause."""
    if samples is None:
        return reason
    others = job.peers_of(one.row, one.phase).tolist()
    idle = while_idle(job, samples, one.row, others, one.first, one.stop)
    if idle is None:
        return reason
    reason = replace(reason, evidence=(*reason.evidence, _evidence(idle)))
    excess_ns = one.excess_ns * (one.stop - one.first)
    known = reason.proven or reason.function is not None or reason.cause not in OF_HOSTS
    if known or 2 * idle.mine_ns < excess_ns:
        return reason
    cause = _cause(idle.function)
    return replace(reason, function=idle.function, cause=cause, proven=cause == "jit_compile")


def _cause(function: str) -> Cause:
    if compiles(function):
        return "jit_compile"
    return "data_loading" if LOADER in function else "host"


def _evidence(idle: Idle) -> Evidence:
    detail = (
        f"for {idle.idle_ns / 1e9:.1f} s nothing ran on its device; {idle.mine_ns / 1e9:.1f} s of "
        f"it its host was in {idle.function}, its peers' {idle.peers_ns / 1e9:.1f} s"
    )
    values = {"idle_ns": idle.idle_ns, "function_ns": idle.mine_ns, "peers_ns": idle.peers_ns}
    return Evidence("idle", detail, values)
