"""Slow steps that come back at regular distances: how often, at what cost, and from what source.

Fault: a job that loses time every so many steps (checkpoints, evaluation, full collections of
garbage) or every so many seconds (timers of the host, such as cron).
Paper: KAIR (Yang et al.), section III-B, "frequency-based visualization", shows how often operators
occur over time and leaves the reading to people. It has no rule; this one is ours.
What differs: distances are fitted in steps and in seconds, and judged against slow steps at random
places (`numeric.combs`); the source is named only from what was recorded in these steps
(`period_source`).
Every diagnosis shows the periods it finds beside the verdicts: a checkpoint accuses nobody, what
has a culprit already has its verdict, and what costs a tenth of the time gets one
(`recurring_loss`).
Cost: a running median per series; 40 ms for a series of 4,000 steps with 400 slow ones.
Cannot see: fewer than five slow steps; distances below three steps; moments that wander.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from stepscope.diagnose.detect.period_source import source_of
from stepscope.diagnose.detect.recurring import Recurrent, recurring
from stepscope.diagnose.finding import Cause
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.shown import Period, Source
from stepscope.diagnose.words import periods as words

EVIDENCE = "periods"
"""What verdicts call the evidence of a period."""
CAUSES: Mapping[Source, Cause] = {
    "checkpoint": "code",
    "evaluation": "code",
    "garbage collection": "gc",
    "compilation": "jit_compile",
    "data loading": "data_loading",
    "NCCL heartbeat": "host",
    "other processes": "contention",
    "other processes on GPUs": "contention",
    "a function": "code",
    "unknown source": "unknown",
}


def periods(job: Observed) -> tuple[Period, ...]:
    """All periods that a job's steps show, the costliest first."""
    found = [_period(job, one) for one in recurring(job)]
    return tuple(sorted(found, key=lambda one: -one.lost_fraction))


def _period(job: Observed, one: Recurrent) -> Period:
    source, comb = source_of(job, one), one.comb
    ranks = job.line.ranks_of(one.rows)
    hosts = dict.fromkeys(host for rank in ranks if (host := job.window.host_of(rank)) is not None)
    scales = (1.0, 1e9) if comb.unit == "steps" else (1e9, 1.0)
    at = tuple(int(job.line.steps[run[0]]) for run in one.runs)
    found = Period(
        unit=comb.unit, every=comb.distance / scales[0],
        either=None if comb.either is None else comb.either / scales[1],
        hits=len(at), slots=comb.slots, chance=float(np.exp(comb.log_chance)),
        steps=(at[0], at[-1]), at=at, excess_ns=one.excess_ns, lost_fraction=one.lost_fraction,
        ranks=ranks, hosts=tuple(hosts), phase=one.phase, kernel=one.kernel,
        function=source.function, source=source.source, because=source.because,
    )  # fmt: skip
    return replace(found, says=words.summary(found), advice=words.advice(found))
