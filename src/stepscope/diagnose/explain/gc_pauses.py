"""Garbage collection that pauses one rank for longer than its peers.

Fault: Python's collector runs on one rank longer or more often than on the others.
Paper: EROICA (2026), section 6.1, case 1, found collections in stacks; here pauses are measured.
Cost: a mean over the pauses. Cannot see: pauses below the collector's reporting limit.
"""

from __future__ import annotations

from stepscope.diagnose.detect.ranks.gc_pauses import collecting_function, extra_pause_ns
from stepscope.diagnose.finding import Cause, Evidence
from stepscope.diagnose.method import Explained, Needs
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import HALF


class GcPauses:
    """Garbage collection that takes up at least half of the rank's excess over its peers."""

    name = "gc-pauses"
    causes: tuple[Cause, ...] = ("gc",)
    needs = Needs("pauses|hardware:gc_collections")

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        pause_ns = extra_pause_ns(job, suspect.row, suspect.first, suspect.stop)
        share = pause_ns / max(suspect.excess_ns, 1.0)
        if share < HALF:
            return None
        evidence = (_evidence(pause_ns, suspect),)
        where = collecting_function(job, suspect.first, suspect.stop, [suspect.row])
        return Explained("gc", "measured", evidence, share, function=where, proven=True)


def _evidence(pause_ns: float, suspect: Suspect) -> Evidence:
    detail = (
        f"garbage collection takes {pause_ns / 1e6:.1f} ms per step more than on its peers, of "
        f"{suspect.excess_ns / 1e6:.1f} ms excess"
    )
    return Evidence(GcPauses.name, detail, {"pause_ns": pause_ns, "excess_ns": suspect.excess_ns})
