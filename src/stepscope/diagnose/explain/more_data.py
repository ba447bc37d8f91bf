"""More data than the peers in the exchanges between experts: unequal work, not a slow machine.

Fault: an expert that the router prefers. Its rank receives more tokens, computes longer on them,
and sends them back.
Paper: ARGUS (2026), table 6, recognises it by the experts' phase. Most jobs do not record that.
What differs (blame rule 5): the bytes of all-to-all operators are the tokens. A slow device moves
as many as its peers.
Cost: one pass over the rows of `comm_ops`. Cannot see: exchanges that are padded to equal sizes.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.finding import Cause, Evidence
from stepscope.diagnose.method import Explained, Needs
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed, once
from stepscope.diagnose.prepare.communication import loads
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.views.work_size import exchanged
from stepscope.window import Floats

LEAST = 1.2
"""Times the median of the peers. With balanced routing the sums over many steps differ by a few
percent. Measured on real data (the lab: below 1.05, with a popular expert 1.6 to 2.5)."""


class MoreData:
    """A rank that exchanges more data with the other experts than its peers do."""

    name = "more-data"
    causes: tuple[Cause, ...] = ("load_imbalance",)
    needs = Needs("comm_ops.bytes", ranks=2)

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        if loads(suspect.phase) or self.needs.missing(job.window):
            return None
        moved = _exchanged(job, suspect)
        others = job.peers_of(suspect.row, suspect.phase)
        usual = stats.median(moved[others]) if others.size else 0.0
        if not usual > 0 or not moved[suspect.row] >= LEAST * usual:
            return None
        times = float(moved[suspect.row]) / usual
        detail = f"it exchanges {times:.1f} times as many bytes in AllToAll as its peers"
        evidence = Evidence(self.name, detail, {"times": times})
        return Explained("load_imbalance", "measured", (evidence,), proven=True)


@once
def _exchanged(job: Observed, suspect: Suspect) -> Floats:
    """The bytes of each rank in the steps in which the suspect is slow."""
    return exchanged(job.window, job.line, np.arange(len(job.line.steps))[suspect.columns])
