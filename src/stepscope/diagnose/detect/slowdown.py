"""A suspect as a finding, with the decision on its own time (blame rule 1)."""

from __future__ import annotations

from stepscope.diagnose.finding import Decision, Slowdown
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect

OWN_TIME = "own-time"
"""The name of blame rule 1 (`decide.rules`)."""


def slowdown_of(job: Observed, method: str, suspect: Suspect) -> Slowdown:
    """What a method found of one rank; its cause and cost are worked out later."""
    line = job.line
    return Slowdown(
        method, "unknown", "", (int(line.ranks[suspect.row]),),
        steps=line.span(suspect.first, suspect.stop),
        time_ns=line.span_ns(suspect.first, suspect.stop), slowdown=suspect.slowdown,
        lost_ns=suspect.excess_ns, suspect=suspect, decisions=(_own_time(method, suspect),),
    )  # fmt: skip


def _own_time(method: str, suspect: Suspect) -> Decision:
    where = f" in {suspect.phase}" if suspect.phase else ""
    says = f"{method}: {suspect.slowdown:.2f} times its peers' own time{where}"
    if not suspect.phases:
        return Decision(OWN_TIME, True, None, None, f"{says}, because of garbage collection")
    says += f"; z {suspect.z:.1f}, noise reaches {suspect.needed:.1f}"
    return Decision(OWN_TIME, True, suspect.z, suspect.needed, says)
