"""A quota of processor time that stops a rank: of a container, a pod, or a systemd unit.

Fault: the control group of a host's ranks may use less processor time than they need. The kernel
stops all of them in every period once the quota is used up.
Paper: none. The kernel counts it (`cpu_throttled`), so nothing is inferred. A quota that stops all
ranks of the job alike makes none of them slower than its peers.
What it stops are all ranks of the group, in whatever they do at that time. So the ranks of the host
that are stopped as well are named with the suspect, although they may be late in other steps.
Cost: means over a range. Cannot see: what the rank would do with more processor time.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.finding import Cause, Evidence
from stepscope.diagnose.method import Explained, Needs
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import THROTTLED
from stepscope.diagnose.words.numbers import percent
from stepscope.window import Mask

ALIKE = 0.5
"""Ranks of the same host that are stopped for this part of it share the quota. Our choice."""


class CpuQuota:
    """A quota of processor time that stops this rank, and not its peers."""

    name = "cpu-quota"
    causes: tuple[Cause, ...] = ("host",)
    needs = Needs("hardware:cpu_throttled", ranks=2)

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        stopped = job.hardware("cpu_throttled", suspect.first, suspect.stop)
        own, others = float(stopped[suspect.row]), stats.median(np.delete(stopped, suspect.row))
        if not own - others >= THROTTLED:
            return None
        detail = (
            f"a quota of its control group stops it for {percent(own)} of the time, "
            f"its peers for {percent(others)}"
        )
        evidence = Evidence(self.name, detail, {"throttled": own, "peers": others})
        return Explained(
            "host", "measured", (evidence,), whole_rank=suspect.inflated > 1, proven=True,
            beside=_sharing(job, suspect.row, stopped >= ALIKE * own),
        )  # fmt: skip


def _sharing(job: Observed, row: int, stopped: Mask) -> tuple[int, ...]:
    """All ranks of the same host that are stopped."""
    ranks = [int(rank) for rank in job.line.ranks[stopped]]
    host = job.window.host_of(int(job.line.ranks[row]))
    return tuple(rank for rank in ranks if host is not None and job.window.host_of(rank) == host)
