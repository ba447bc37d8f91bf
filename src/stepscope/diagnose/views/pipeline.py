"""How the stages of a pipeline lie on its ranks, as the passes of a step show it.

With several stages per rank these go round: rank 0, 1, … P-1, and again 0 (Megatron's interleaved
schedule); or in a wave: 0, 1, … P-1, and back from P-1 to 0 (torch's ZBV and DualPipeV).
"""

from __future__ import annotations

import numpy as np

from stepscope.trace import BACKWARD, FORWARD, WEIGHT
from stepscope.window import Window, occurrence

PASSES = (FORWARD, BACKWARD, WEIGHT)
ONE_LAYER = ("tp", "cp")
"""Groups whose members compute one pass together."""


def is_wave(window: Window) -> bool:
    """Whether the second stage of the last rank comes before that of the first rank.

    Answered by the first step of the first pipeline: by when its ranks began the forward pass of
    their second stages for microbatch 0.
    """
    pipelines = window.job.groups_of_kind("pp")
    phases = window.table("phases")
    if not pipelines or phases is None or not phases.has("microbatch", "step"):
        return False
    first, last = pipelines[0].ranks[0], pipelines[0].ranks[-1]
    rank, step = phases.ints("rank"), phases.ints("step")
    kept = (rank == first) | (rank == last)
    kept &= (phases.ints("microbatch") == 0) & phases.strings("phase").equals(FORWARD)
    rank, step, start = rank[kept], step[kept], phases.ints("start_ns")[kept]
    if first == last or not rank.size:
        return False
    second = occurrence(2 * (step - step.min()) + (rank == last), start) == 1
    begun = {one: start[second & (rank == one) & (step == step.min())] for one in (first, last)}
    if not all(times.size for times in begun.values()):
        return False
    return bool(np.min(begun[last]) < np.min(begun[first]))
