"""EROICA's detection as published: the mean of 50 steps against the shortest mean before.

Fault: a job that has become slower, whoever is to blame.
Paper: EROICA (2026), section 4.1. Symbols: N -> `degradation.published.AVERAGED`, 5 % -> `RISE`.
Runs by `--method eroica-detect-published` only. It takes a long pause within a step for a
degradation, and noise of 10 % (docs/methods/eroica-detect.md). While a job runs, the
processor uses `degradation.robust`; in a recorded job, `detect.step_time` is the default.
What differs: the durations of a step are those of the median rank; the paper has one per worker.
Cost: linear in steps. Cannot see: what was slow from the start, nor who or why.
"""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.degradation.published import RISE, PublishedRise
from stepscope.diagnose.finding import Unsteady
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.window import Floats


class EroicaDetectPublished:
    """A job that has become slower, by the rule that EROICA publishes."""

    name = "eroica-detect-published"
    needs = Needs("steps")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Unsteady]:
        duration_ns = stats.column_median(job.line.duration_ns)
        found = first_degraded(duration_ns)
        if found is not None:
            split, ratio = found
            detail = f"the mean of 50 steps is {ratio:.2f} times the shortest, above {RISE:.2f}"
            yield Unsteady(self.name, "unknown", detail, slowdown=ratio, split=split)


def first_degraded(durations: Floats) -> tuple[int, float] | None:
    """Where the rule first holds, and by how much; steps of unknown length are left out."""
    rule = PublishedRise()
    for at, duration in enumerate(durations.tolist()):
        if duration > 0:
            ratio = rule.add(duration)
            if ratio is not None:
                return at, ratio
    return None
