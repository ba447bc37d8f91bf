"""Whether experts are slow because of their tokens or their devices: routing creates no tokens.

Fault: experts that get more tokens than others, as opposed to devices that run experts slowly.
Paper: ARGUS (2026), section 9.5: `mlp` is 5.7 times as long on 8 of 32 ranks of an expert group;
people see that these are bad devices. Preferred experts show in the same phase (table 6).
What differs (blame rule 5): routing moves tokens between the ranks of one expert group, so that all
of them together have as many as before. If the slow ranks alone would need more tokens than the
group has, with the time of experts taken as proportional to tokens, tokens are not the cause.
Cost: one pass over the rows of `phases`, or of `kernel_summaries`.
Cannot see: slow devices that need no more than all tokens, as one of eight that is 5 times slower;
a group whose own samples are longer (its attention is longer as well, see `experts`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stepscope.diagnose.explain.cpu import of_host, processor_evidence
from stepscope.diagnose.explain.experts import (
    Part,
    expert_times,
    explain,
    kernels_of,
    more_but_for_attention,
    more_for_experts,
    parts_of,
    within_passes,
)
from stepscope.diagnose.finding import Cause, Evidence
from stepscope.diagnose.method import Explained, Needs
from stepscope.diagnose.numeric.stats import median
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.views.peers import is_expert
from stepscope.window import Floats, Ints

BEYOND = 1.1
"""Times all tokens of a group. The sum over many experts whose times scatter by a tenth scatters by
less; of two, one may have all tokens. Our simulator."""
ALSO_SLOW = 0.5
"""Of the culprit's excess: ranks with as much count as slow like it. Our simulator."""


def too_many(job: Observed, one: Suspect, name: str) -> bool:
    """Whether a culprit and ranks like it would need more tokens than there are.

    Args:
        name: the phase or kernel of experts that is slow.
    """
    times = expert_times(job, one, name)
    usual = median(times[job.peers_of(one.row, one.phase)])
    return exceeds(job, one.row, times, usual)


def exceeds(job: Observed, row: int, times_ns: Floats, usual_ns: float) -> bool:
    """The same for the times of experts by rank (NaN: unknown) and their usual times."""
    members = _group_of(job, row)
    if not members.size or not usual_ns > 0 or not np.isfinite(times_ns[row]):
        return False
    tokens = times_ns[members] / usual_ns
    like_it = tokens >= 1 + ALSO_SLOW * (times_ns[row] / usual_ns - 1)
    return float(tokens[like_it].sum()) > BEYOND * members.size


def _group_of(job: Observed, row: int) -> Ints:
    """The rows of all ranks of a rank's expert group, where each was recorded."""
    rank = int(job.line.ranks[row])
    for group in job.window.job.groups_of_kind("ep"):
        if rank in group.ranks and len(group.ranks) > 1:
            rows = job.line.rows(np.array(group.ranks, np.int64))
            return rows if (rows >= 0).all() else np.zeros(0, np.int64)
    return np.zeros(0, np.int64)


class MoreTokens:
    """Experts that get more tokens than others, where nothing else makes the passes longer."""

    name = "more-tokens"
    causes: tuple[Cause, ...] = ("load_imbalance",)
    needs = Needs("phases|kernels|kernel_summaries", ranks=2)

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        if of_host(job, suspect):
            return None
        phases, parts = parts_in(job, suspect)
        name = more_for_experts(parts)
        rest = "the rest of the passes"
        if name is None and parts is not phases:
            name, rest = more_but_for_attention(parts), "attention"
        if name is None or not explain(parts, suspect):
            return None
        if not job.has_experts or too_many(job, suspect, name):
            return None
        share = parts[name].excess_ns / max(suspect.excess_ns, 1.0)
        phase = next((one for one in phases if is_expert(one)), None)
        return Explained(
            "load_imbalance", "measured",
            (_evidence(parts, name, rest), *processor_evidence(job, suspect)), share,
            kernels=() if name in phases else (name,), phase=phase,
            slowdown=phases[phase].slowdown if phase else None,
        )  # fmt: skip


def parts_in(job: Observed, suspect: Suspect) -> tuple[Mapping[str, Part], Mapping[str, Part]]:
    """The phases that show what is slow on a device, and what to judge: these, or kernels, if they
    say more of the passes."""
    phases = parts_of(job, suspect)
    if within_passes(phases):
        return phases, phases
    return phases, kernels_of(job, suspect) or phases


def is_slow_device(job: Observed, suspect: Suspect) -> bool:
    """Whether a suspect whose experts are slow is as slow in work that has no tokens."""
    parts = parts_of(job, suspect)
    others = [one for name, one in parts.items() if not is_expert(name)]
    return bool(others) and more_for_experts(parts) is None and any(
        one.slowdown - 1 >= ALSO_SLOW * (suspect.slowdown - 1) for one in others)  # fmt: skip


def _evidence(parts: Mapping[str, Part], phase: str, rest: str) -> Evidence:
    part = parts[phase]
    detail = (
        f"{phase} takes {part.excess_ns / 1e6:.1f} ms per step more than on its peers, and "
        f"{rest} no longer: more tokens, not a slower device"
    )
    return Evidence(MoreTokens.name, detail, {name: one.excess_ns for name, one in parts.items()})
