"""A rank that became slower than it was, in a phase that no other rank has.

Fault: slow data loading in a pipeline, where only the first stage loads; whatever one rank alone
does.
Paper: none; ARGUS (2026), section 6.1, compares a rank with its peers only.
Rule: steps got longer from some step on (`step_time`), a rank's own time in such a phase rose by at
least half of that, and no other rank's own time rose by half as much as its did.
Cost: medians of arrays at hand. Cannot see: what was slow from the first step on; several culprits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.diagnose.detect import step_time
from stepscope.diagnose.detect.regression.rise import risen
from stepscope.diagnose.detect.slowdown import slowdown_of
from stepscope.diagnose.finding import Slowdown
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import Suspect
from stepscope.window import Floats

HALF = 0.5
"""A rank explains a rise of which its own is at least half, and others do not share it if theirs is
less than half of its. Our simulator."""


class OwnPast:
    """A rank whose own time in a phase of its own rose when the steps got longer."""

    name = "own-past"
    needs = Needs("phases", "steps")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        skip = job.line.warm_up
        change = step_time.regression(job.line.job_period_ns[skip:])
        if change is None or len(job.line.ranks) < 2:
            return
        split, step_ns = change.split + skip, change.after_ns - change.before_ns
        before, after = slice(skip, split), slice(split, None)
        total = np.nan_to_num(risen(job.total, before, after))
        row = int(np.argmax(total))
        others = np.delete(total, row)
        if total[row] < HALF * step_ns or others.max() >= HALF * total[row]:
            return
        for phase, own in zip(job.own.phases, job.own.own, strict=True):
            alone = np.isfinite(own).any(axis=1).sum() == 1
            rise = float(np.nan_to_num(risen(own, before, after))[row])
            if alone and rise >= HALF * step_ns:
                yield slowdown_of(job, self.name, _suspect(job, own, row, phase, split, rise))


def _suspect(
    job: Observed, own: Floats, row: int, phase: str, split: int, rise_ns: float
) -> Suspect:
    """Its own past takes the place of the peers that it does not have."""
    before = own[row, job.line.warm_up : split]
    usual, noise = stats.median(before), max(stats.sigma(before), 1.0)
    slowdown = (usual + rise_ns) / max(usual, 1.0)
    z = rise_ns / noise * np.sqrt(before[np.isfinite(before)].size)
    return Suspect(
        row, phase, (phase,), split, len(job.line.steps), float(np.log(slowdown)), float(z), 0.0,
        rise_ns, slowdown, 1, by_past=True,
    )  # fmt: skip
