"""Ranks that became slower than they were, where nobody else does what they do.

Fault: slow data loading in a pipeline, where only the first stage loads; whatever one rank alone
does; a slow host that holds all ranks of a pipeline stage; the device of a job that has only one.
Paper: none; ARGUS (2026), section 6.1, compares a rank with its peers only.
Rule: steps got longer from some step on, or for a while (`step_time`), and the own time of one
rank, in a phase that it alone has, or of all ranks of a stage rose by at least half of that, and no
other rank's by half as much. The only rank of a job counts if a device runs it, and takes longer in
all phases: a larger batch or other code leaves some as they are, and a busy machine slows no
device.
Cost: medians of arrays at hand. Cannot see: what was slow from the first step on; several culprits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from stepscope.diagnose.account.model import Model
from stepscope.diagnose.detect.ranks.slowdown import slowdown_of
from stepscope.diagnose.detect.regression.rise import risen, shared_rise
from stepscope.diagnose.detect.steps import step_time
from stepscope.diagnose.finding import Slowdown
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.network.on_devices import on_devices
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.suspect import INFLATED, Suspect
from stepscope.diagnose.thresholds import HALF
from stepscope.window import Floats


class OwnPast:
    """Ranks whose own time rose when the steps got longer, and that have no peers to compare."""

    name = "own-past"
    needs = Needs("phases|comm_ops", "steps|comm_ops")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        skip = job.line.warm_up
        change = step_time.regression(job.line.job_period_ns[skip:])
        if change is None:
            passed = step_time.episode(job.line.job_period_ns[skip:])
            if passed is None:
                return
            change, job = passed[0], job.until(passed[1] + skip)
        split, step_ns = change.split + skip, change.after_ns - change.before_ns
        if len(job.line.ranks) == 1 and not _is_slow_device(job, replace(change, split=split)):
            return
        before, after = slice(skip, split), slice(split, None)
        total = np.nan_to_num(risen(job.total, before, after))
        rows = _risen_alone(job, total, HALF * step_ns)
        for row in rows:
            for phase, own in _without_peers(job, row, len(rows)):
                rise = float(np.nan_to_num(risen(own, before, after))[row])
                if rise >= HALF * step_ns:
                    yield slowdown_of(job, self.name, _suspect(job, own, row, phase, split, rise))


def _risen_alone(job: Observed, risen_ns: Floats, least_ns: float) -> list[int]:
    """The rank, or all ranks of a stage, whose own time rose by this and that of no other by half
    as much."""
    row = int(np.argmax(risen_ns))
    for rows in ([row], _stage_of(job, row)):
        others = np.delete(risen_ns, rows)
        least = risen_ns[rows].min()
        if least >= least_ns and others.max(initial=0.0) < HALF * least:
            return [int(one) for one in rows]
    return []


def _is_slow_device(job: Observed, change: step_time.StepChange) -> bool:
    """Whether the only rank of a job takes longer in everything that its device does."""
    rise = shared_rise(job, change)
    alone = job.window.job.world_size == 1 and on_devices(job)
    return alone and rise.phase is None and not rise.selective


def _stage_of(job: Observed, row: int) -> list[int]:
    """All ranks of a rank's pipeline stage; only itself where there is one stage.

    Ranks at the same place of other groups share a network that may have got slower.
    """
    model = Model.of(job)
    return np.flatnonzero(model.stage == model.stage[row]).tolist() if model.staged else [row]


def _without_peers(job: Observed, row: int, together: int) -> Iterator[tuple[str | None, Floats]]:
    """The own times that nobody else has: those of phases of one rank; of a whole stage, or of the
    only rank, all."""
    if together > 1 or len(job.line.ranks) == 1:
        yield None, job.total
        return
    for phase, own in job.own.items():
        if np.isfinite(own).any(axis=1).sum() == 1:
            yield phase, own


def _suspect(
    job: Observed, own: Floats, row: int, phase: str | None, split: int, rise_ns: float
) -> Suspect:
    """Its own past takes the place of the peers that it does not have."""
    before = own[row, job.line.warm_up : split]
    usual, noise = stats.median(before), max(stats.sigma(before), 1.0)
    slowdown = (usual + rise_ns) / max(usual, 1.0)
    z = rise_ns / noise * np.sqrt(before[np.isfinite(before)].size)
    phases = (phase,) if phase else _risen(job, row, split, INFLATED * rise_ns)
    return Suspect(
        row, phase, phases, split, len(job.line.steps), float(np.log(slowdown)), float(z), 0.0,
        rise_ns, slowdown, 1, by_past=True,
    )  # fmt: skip


def _risen(job: Observed, row: int, split: int, least_ns: float) -> tuple[str, ...]:
    """The phases that carry a notable part of the rise."""
    before, after = slice(job.line.warm_up, split), slice(split, None)
    return tuple(phase for phase, own in job.own.items()
                 if risen(own, before, after)[row] >= least_ns)  # fmt: skip
