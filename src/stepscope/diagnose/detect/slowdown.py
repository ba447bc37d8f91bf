"""A suspect as a finding, with the decision on its own time (blame rule 1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.diagnose.finding import Decision, Slowdown
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.views.unnamed import UNNAMED
from stepscope.window import Ints

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


def slowdown_in(
    job: Observed, row: int, phase: str | None, columns: slice | Ints, excess_ns: float
) -> float:
    """How many times as long as its peers the rank takes in the phase.

    Excess in no phase, or in no single one, is compared with all that its peers do: times outside
    of phases are not recorded, and what the rank takes longer there may be waiting of its peers'.
    """
    if phase in (None, *UNNAMED):
        peers_ns = stats.median(job.peer_median(job.total, phase, row)[columns])
        return 1 + excess_ns / max(peers_ns, 1.0)
    own = job.own.own[job.own.phases.index(phase)]
    peers_ns = stats.median(job.peer_median(own, phase, row)[columns])
    return stats.median(own[row, columns]) / max(peers_ns, 1.0)


def shares_of(
    job: Observed, row: int, first: int, stop: int, phases: Sequence[str]
) -> dict[str, float]:
    """Mean excess per step of each of the phases in which the rank has any."""
    shares = {}
    for phase in phases:
        values = job.excess_of(phase, row)[first:stop]
        typical = float(stats.block_means(values[None], max(len(values), 1))[0].sum())
        if np.isfinite(typical) and typical > 0:
            shares[phase] = typical
    return shares


def _own_time(method: str, suspect: Suspect) -> Decision:
    where = f" in {suspect.phase}" if suspect.phase else ""
    says = f"{method}: {suspect.slowdown:.2f} times its peers' own time{where}"
    if not suspect.phases:
        return Decision(OWN_TIME, True, None, None, f"{says}, because of garbage collection")
    says += f"; z {suspect.z:.1f}, noise reaches {suspect.needed:.1f}"
    return Decision(OWN_TIME, True, suspect.z, suspect.needed, says)
