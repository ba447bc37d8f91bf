"""The remaining cause when no measurement shows one, by where the time goes.

Fault: any slow rank.
Paper: none.
What differs: data loading and experts are causes by their phase. Otherwise most of the excess is
processor time (`compute`) or not (`host`); without processor times, time outside phases or a late
host means `host`.
Cost: means over a range. Cannot see: why the host or the device is slow.
"""

from __future__ import annotations

from stepscope.diagnose.explain import tokens
from stepscope.diagnose.explain.cpu import processor_evidence, use_of_excess
from stepscope.diagnose.finding import Cause
from stepscope.diagnose.method import Explained, Needs, Strength
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import PROCESSOR_TIME
from stepscope.diagnose.views.communication import loads
from stepscope.diagnose.views.peers import is_expert
from stepscope.diagnose.views.unnamed import GAPS, OUTSIDE


class Elimination:
    """The cause that is left when none was measured, by the slow phase and its processor time."""

    name = "elimination"
    causes: tuple[Cause, ...] = ("compute", "host", "data_loading", "load_imbalance")
    needs = Needs()

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        cause, strength = plain_cause(job, suspect)
        return Explained(cause, strength, processor_evidence(job, suspect))


def plain_cause(job: Observed, suspect: Suspect) -> tuple[Cause, Strength]:
    """The cause that the suspect's phase suggests, or else its use of the processor."""
    if loads(suspect.phase):
        return "data_loading", "measured"
    if suspect.phase and is_expert(suspect.phase) and any(job.window.job.groups_of_kind("ep")):
        if not tokens.too_many(job, suspect, suspect.phase):
            return "load_imbalance", "measured"
        return "compute", "residual"
    use = use_of_excess(job, suspect)
    if use.computed is None:
        late = suspect.phase in (OUTSIDE, GAPS) or use.is_late
        return ("host" if late else "compute"), "residual"
    return ("compute" if use.computed >= PROCESSOR_TIME else "host"), "residual"
