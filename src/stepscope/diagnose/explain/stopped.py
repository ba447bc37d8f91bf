"""A process that was stopped for most of a rank's excess, by its states as the kernel reports them.

Fault: SIGSTOP, a debugger, a frozen control group, where own times show the same rank (`stopped`
finds those of which nothing else shows).
Cost: a look at all stops. Cannot see: what is shorter than two samples of the process.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.finding import Cause, Evidence
from stepscope.diagnose.method import Explained, Needs
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.operators.stops import METRIC
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import HALF


class StoppedProcess:
    """A process that was stopped for at least half of its excess."""

    name = "stopped-process"
    causes: tuple[Cause, ...] = ("host",)
    needs = Needs(f"hardware:{METRIC}")

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        stopped_ns = _stopped_ns(job, suspect)
        share = stopped_ns / max(suspect.whole_ns, 1.0)
        if share < HALF:
            return None
        detail = f"its process was stopped for {stopped_ns / 1e9:.1f} s, and went on"
        evidence = (Evidence(self.name, detail, {"stopped_ns": stopped_ns}),)
        return Explained("host", "measured", evidence, min(share, 1.0), whole_rank=True,
                         proven=True)  # fmt: skip


def _stopped_ns(job: Observed, suspect: Suspect) -> int:
    """How long its process was stopped in stops that began in the steps in which it is slow."""
    slow = np.arange(len(job.line.steps))[suspect.columns]
    rank = int(job.line.ranks[suspect.row])
    own = [one for one in job.stops if rank in one.ranks]
    column = job.line.column_at(np.array([one.begin_ns for one in own], np.int64))
    return sum(one.end_ns - one.begin_ns for one, at in zip(own, column, strict=True) if at in slow)
