"""Data loading that holds a notable part of the steps of all ranks that load data.

Fault: storage, preprocessing or too few workers keep every rank waiting for its next batch, from
the first step on or for a part of the job. No rank is slower than its peers.
Paper: none. What every rank spends in its loader while its device idles is lost by all: the least
of any rank (`account.waste`). A few percent of it are ordinary.
Cost: two cumulative sums over the steps. Cannot see: loading in worker processes that nobody waits
for; jobs on GPUs whose kernels were not recorded, where the device may work meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.diagnose.account import waste
from stepscope.diagnose.account.belief import ORDINARY
from stepscope.diagnose.finding import Waste
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.words.numbers import percent
from stepscope.trace import DATA_LOAD
from stepscope.window import Mask


class SharedLoading:
    """Data loading that holds a notable part of the steps on all ranks."""

    name = "shared-loading"
    needs = Needs("phases", "steps", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Waste]:
        idle = waste.idle_of_devices(job)
        if DATA_LOAD not in job.own.phases or idle is None:
            return
        own = np.minimum(job.own.own[job.own.phases.index(DATA_LOAD)], idle)
        loads: Mask = np.asarray(np.isfinite(own).any(axis=1))
        part = waste.stretch(job, waste.by_all(own[loads]), ORDINARY)
        if part is not None:
            yield _found(job, part, loads)


def _found(job: Observed, part: waste.Stretch, loads: Mask) -> Waste:
    """Where few ranks load data for all, as the first stage of a pipeline does, these are named."""
    rank, alone = int(job.line.ranks[np.argmax(loads)]), loads.sum() == 1
    who = f"rank {rank} spends" if alone else "all ranks spend"
    says = f"{who} {percent(part.loss)} of {'its' if alone else 'their'} steps waiting for data"
    if part.first > job.line.warm_up:
        says += f" from step {job.line.steps[part.first]}"
    detail = f"each of {int(loads.sum())} ranks spends {part.lost_ns / 1e6:.1f} ms per step in it"
    return waste.found(
        job, SharedLoading.name, "data_loading", part, part.loss, says, detail,
        (rank,) if alone else (), DATA_LOAD,
    )  # fmt: skip
