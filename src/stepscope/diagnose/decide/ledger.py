"""The ledger: measured step time = what the work needs + what each verdict costs + unexplained.

What the work needs is the fast level of the steps (their lower quartile), or what is left when all
verdicts are healed if that is less: what was slow from the first step on has no fast level to
compare with. Contract, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.diagnose.finding import Entry, Ledger, StepSeries, Verdict
from stepscope.diagnose.thresholds import FAST
from stepscope.window import Floats, Ints


def ledger(series: StepSeries, warm_up: int, verdicts: Sequence[Verdict]) -> Ledger | None:
    """The job's time after the first `warm_up` steps; None without step times."""
    steps = np.array(series.steps[warm_up:], np.int64)
    took = np.array(series.duration_ns[warm_up:], np.float64)
    if not took.size or not took.sum() > 0:
        return None
    mean = float(took.mean())
    entries = [Entry(at, share) for at, one in enumerate(verdicts)
               if (share := _share(one, steps, took)) > 0]  # fmt: skip
    given = sum(one.fraction for one in entries)
    if given > 1:
        entries = [Entry(one.verdict, one.fraction / given) for one in entries]
        given = 1.0
    needed = min(float(np.quantile(took, FAST)), mean * (1 - given))
    return Ledger(
        (int(steps[0]), int(steps[-1])), round(mean), round(needed), tuple(entries),
        round(max(1 - given - needed / mean, 0.0), 6),
    )  # fmt: skip


def _share(verdict: Verdict, steps: Ints, took: Floats) -> float:
    """What a verdict costs, as a share of all judged steps and not only of its own."""
    if verdict.kind != "slowdown" or not verdict.lost_fraction:
        return 0.0
    first, last = verdict.steps or (int(steps[0]), int(steps[-1]))
    inside = float(took[(steps >= first) & (steps <= last)].sum())
    return verdict.lost_fraction * inside / float(took.sum())
