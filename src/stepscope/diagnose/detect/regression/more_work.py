"""Whether a rise that all ranks share looks like more work, which the job itself planned.

Fault: none. A curriculum makes batches larger, or a part of the model that was frozen is trained
from some step on. Nothing but the times of phases may show it where no sizes were recorded.
Paper: none. What layers do grows with the samples, what the optimizer does does not: if all phases
but the optimizer and the loader grew by one factor, there may be more samples. And if the backward
pass alone grew, more of the model may be trained: the gradients of weights and of activations take
as long as the forward pass each, and so does computing the activations again.
Cost: medians of arrays at hand. Cannot see: what really changed; so such a rise is a suspicion.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.account.waste import WITHIN
from stepscope.diagnose.detect.recurrent.world_change import find_changes
from stepscope.diagnose.detect.regression.rise import NOTABLE, UNCHANGED, Rise, risen
from stepscope.diagnose.detect.steps.step_time import SLIGHT_RISE, StepChange
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.views.unnamed import UNNAMED
from stepscope.trace import BACKWARD, DATA_LOAD, FORWARD, OPTIMIZER

MOST_BACKWARD = 3.0
"""Forward passes that a backward pass takes at most: two kinds of gradients, and the activations
again. Operation counts of matrix products."""


def looks_like_more_work(job: Observed, split: int, rise: Rise) -> str:
    """What of the work may have grown, as an explanation; empty where it does not look like that.

    Args:
        split: the column from which steps take longer.
    """
    usual, grown = _of_layers(job, split)
    if not grown:
        return ""
    ratio = {phase: grown[phase] / usual[phase] for phase in grown}
    if min(ratio.values()) >= (1 - UNCHANGED) * max(ratio.values()) > 0 and rise.selective:
        return "; all that depends on the samples grew alike: are batches or sequences longer?"
    known = FORWARD in ratio and BACKWARD in ratio
    if known and rise.phase == BACKWARD and ratio[FORWARD] <= UNCHANGED * ratio[BACKWARD]:
        forward, backward = (usual[phase] + grown[phase] for phase in (FORWARD, BACKWARD))
        if backward <= MOST_BACKWARD * forward:
            return "; only the backward pass grew: is more of the model trained?"
    return ""


def looks_like_fewer_ranks(job: Observed, change: StepChange) -> str:
    """That ranks left when steps became longer, by no more than the others may have to do for
    them; empty where none did, or steps are longer than that."""
    for one in find_changes(job):
        near = abs(one.column - change.split) <= WITHIN
        stayed = int(np.isfinite(job.line.duration_ns[:, one.column]).sum()) - len(one.joined)
        most = (stayed + len(one.left)) / max(stayed, 1)
        if near and 1 < change.ratio <= most * SLIGHT_RISE:
            return f"; {len(one.left)} ranks left then: do the others have their samples?"
    return ""


def _of_layers(job: Observed, split: int) -> tuple[dict[str, float], dict[str, float]]:
    """Median own time before a column, and its growth, of the phases in which layers compute."""
    before, after = slice(job.line.warm_up, split), slice(split, None)
    whole = stats.median(job.total[:, before])
    usual: dict[str, float] = {}
    grown: dict[str, float] = {}
    for phase, own in job.own.items():
        level = stats.median(own[:, before])
        apart = phase in (*UNNAMED, DATA_LOAD, OPTIMIZER)
        if not apart and np.isfinite(level) and level >= NOTABLE * whole > 0:
            usual[phase], grown[phase] = level, stats.median(risen(own, before, after))
    return usual, grown
