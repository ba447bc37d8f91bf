"""Slow steps that come back at regular distances: how often, at what cost, and from what source.

Fault: a job that loses time every so many steps (checkpoints, evaluation, full collections of
garbage) or every so many seconds (timers of the host, such as cron).
Paper: KAIR (Yang et al.), section III-B, "frequency-based visualization", shows how often operators
occur over time and leaves the reading to people. It has no rule; this one is ours.
What differs: distances are fitted in steps and in seconds, and judged against slow steps at random
places (`numeric.combs`); the source is named only from what was recorded in these steps
(`period_source`).
Every diagnosis shows the periods it finds beside the verdicts. The detector, which makes verdicts
of them, runs by `--method periods` only: a checkpoint accuses nobody, and what has a culprit
already has its verdict.
Cost: a running median per series; 40 ms for a series of 4,000 steps with 400 slow ones.
Cannot see: fewer than five slow steps; distances below three steps; moments that wander.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from stepscope.diagnose.detect.period_source import source_of
from stepscope.diagnose.detect.recurring import Recurrent, recurring
from stepscope.diagnose.finding import Cause, Decision, Recurring
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric.combs import FALSE_ALARMS
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.shown import PLANNED, Period, Source
from stepscope.diagnose.words import periods as words

KNOWN, UNKNOWN, BY_DESIGN = 0.7, 0.6, 0.45
"""Scores: of a source that was recorded, of one that was not, and of what a job does by design,
which is a suspect and accuses nobody. Our choice."""

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


class Periods:
    """Slow steps that come back every so many steps or seconds, and their likely source."""

    name = "periods"
    needs = Needs("steps")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Recurring]:
        for one in periods(job):
            if not one.ranks or not so_far.blamed.issuperset(one.ranks):
                yield _found(job, one)


def periods(job: Observed) -> tuple[Period, ...]:
    """All periods that a job's steps show, the costliest first."""
    found = [_period(job, one) for one in recurring(job)]
    return tuple(sorted(found, key=lambda one: -one.lost_fraction))


def _period(job: Observed, one: Recurrent) -> Period:
    source, comb = source_of(job, one), one.comb
    ranks = tuple(int(job.line.ranks[row]) for row in one.rows)
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


def _found(job: Observed, one: Period) -> Recurring:
    columns = job.line.columns(np.array(one.steps))
    rule = Decision(
        "regular", True, one.chance, FALSE_ALARMS,
        "chance of any such distance among slow steps at random places", gate=False,
    )  # fmt: skip
    score = BY_DESIGN if one.source in PLANNED else KNOWN
    return Recurring(
        Periods.name, CAUSES[one.source], one.because, one.ranks,
        phase=one.phase, function=one.function, kernels=(one.kernel,) if one.kernel else (),
        steps=one.steps, time_ns=job.line.span_ns(int(columns[0]), int(columns[1]) + 1),
        slowdown=1 / max(1 - one.lost_fraction, 0.01), lost_ns=one.excess_ns,
        lost_fraction=one.lost_fraction,
        victims=len(job.line.ranks) - len(one.ranks) if one.ranks else 0,
        score=UNKNOWN if one.source == "unknown source" else score,
        values={"unit": one.unit, "every": one.every, "hits": one.hits, "slots": one.slots,
                "chance": one.chance, "excess_ns": one.excess_ns, "source": one.source},
        decisions=(rule,), says=one.says, advises=one.advice,
    )  # fmt: skip
