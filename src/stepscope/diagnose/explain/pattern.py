"""The function that holds up a slow rank, by its behaviour patterns in profiled steps.

Fault: a rank that was found slow by its step times; profiles show what it does longer than peers.
Paper: EROICA (2026), section 4.3.
What differs: the rank is known, so patterns only say what it does. A rank that waits has a verdict
of nobody, and functions that wait explain nothing.
Cost: medians over peers. Cannot see: ranks and steps that were not profiled.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.detect.profiled.behaviour import cause_by_kind, evidence
from stepscope.diagnose.detect.profiled.odd_patterns import LOWER, Odd
from stepscope.diagnose.explain.elimination import plain_cause
from stepscope.diagnose.finding import Cause, Evidence
from stepscope.diagnose.method import Explained, Needs, Strength
from stepscope.diagnose.numeric.peers import relative
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.patterns import Patterns
from stepscope.window import Floats, Ints, Mask

SEVERAL = 3
"""Kernels that are named, the most excess first. Our choice."""


class PatternOfRank:
    """The function that takes this rank longer than its peers, by profiled steps."""

    name = "pattern-of-rank"
    causes: tuple[Cause, ...] = (
        "compute", "memory_copy", "host", "data_loading", "gc", "jit_compile", "load_imbalance",
    )  # fmt: skip
    needs = Needs("patterns", ranks=2)

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        peers = job.peers_of(suspect.row, suspect.phase)
        for window in reversed(job.patterns):
            if _overlaps(job, suspect, window) and suspect.row in window.rows:
                found = _in_window(job, suspect, window, peers[np.isin(peers, window.rows)])
                if found is not None:
                    return found
        return None


def _overlaps(job: Observed, suspect: Suspect, window: Patterns) -> bool:
    """Whether the rank was slow around the window; profiled steps themselves are not judged."""
    if window.steps is None:
        return True
    first, last = job.line.span(suspect.first, suspect.stop)
    return (window.steps[0] <= last + 1 and window.steps[1] >= first - 1) or (
        suspect.stop == len(job.line.steps) and window.steps[0] >= first
    )  # fmt: skip


def _in_window(job: Observed, suspect: Suspect, window: Patterns, peers: Ints) -> Explained | None:
    if not peers.size or not window.functions:
        return None
    own = window.beta[:, suspect.row]
    usual: Floats = np.median(window.beta[:, peers], axis=1)
    works: Mask = np.array([one.trains and not (one.waits or one.is_pass)
                            for one in window.functions], np.bool_)  # fmt: skip
    excess = np.where(works, own - usual, -np.inf)
    most = int(np.argmax(excess))
    share = _share(job, suspect, window)
    kind = window.functions[most].kind
    alike = np.array([one.kind == kind for one in window.functions]) if kind != "python" else \
        np.arange(len(own)) == most  # fmt: skip
    gained = float(np.maximum(excess, 0.0)[alike & works].sum())
    if share <= 0 or gained < HALF * share:
        return None
    part = min(gained / share, 1.0)
    group = np.append(peers, suspect.row)
    odd = Odd(suspect.row, most, float(own[most]), float(usual[most]), 0.0, 0.0, gained)
    shown = Evidence(
        PatternOfRank.name, evidence(window, odd, group),
        {"share": odd.beta, "peers": odd.usual},
    )  # fmt: skip
    cause, strength = _cause(job, suspect, window, most, group)
    if kind == "python":
        name = window.functions[most].in_users_code
        proven = cause in ("gc", "jit_compile")
        return Explained(cause, strength, (shown,), part, function=name, proven=proven, agrees=True)
    order = [int(at) for at in np.argsort(-excess) if alike[at] and excess[at] > 0]
    kernels = tuple(dict.fromkeys(window.functions[at].name for at in order))[:SEVERAL]
    return Explained(cause, strength, (shown,), part, kernels=kernels, agrees=True)


def _share(job: Observed, suspect: Suspect, window: Patterns) -> float:
    """The part of the window that its excess takes; of a step, where they do not overlap."""
    columns = np.arange(len(job.line.steps))
    inside = job.line.within(window.steps or job.line.span(0, columns.size))
    slow = inside & np.isin(columns, columns[suspect.columns])
    if not slow.any():
        return suspect.excess_ns / max(job.line.typical_ns, 1.0)
    return suspect.excess_ns * int(slow.sum()) / float(np.nansum(job.line.job_period_ns[inside]))


def _cause(
    job: Observed, suspect: Suspect, window: Patterns, at: int, group: Ints
) -> tuple[Cause, Strength]:  # fmt: skip
    cause = cause_by_kind(window, at, suspect.row, group)
    plain, strength = plain_cause(job, suspect)
    if cause == "host":
        if plain == "data_loading":
            return plain, "measured"
        return cause, "inferred"
    if cause == "compute":
        slower = relative(window.mu[at], suspect.row, group)
        is_slow = window.functions[at].resource == "sm" and slower is not None and slower <= LOWER
        return cause, "measured" if is_slow else strength
    return cause, "measured"
