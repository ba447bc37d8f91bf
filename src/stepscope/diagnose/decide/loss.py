"""The loss of a verdict: how long it lasted, and how much time of all ranks it cost."""

from __future__ import annotations

from dataclasses import replace

from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.shown import StepSeries


def with_loss(verdict: Verdict, ranks: int, series: StepSeries) -> Verdict:
    """The verdict with its duration and loss. In a hang everybody who waits, or is stuck, loses all
    of the time; in a slowdown all ranks lose the same share of it."""
    lasted_ns = _lasted_ns(verdict, series)
    if verdict.stands_still:
        lost = float(lasted_ns * (verdict.victims + len(verdict.ranks)))
    else:
        lost = (verdict.lost_fraction or 0.0) * lasted_ns * ranks
    return replace(verdict, lasted_ns=lasted_ns, lost_rank_ns=lost)


def _lasted_ns(verdict: Verdict, series: StepSeries) -> int:
    if verdict.time_ns is not None:
        return verdict.time_ns[1] - verdict.time_ns[0]
    if verdict.steps is None:
        return 0
    first, last = verdict.steps
    steps = zip(series.steps, series.duration_ns, strict=True)
    return sum(took for step, took in steps if first <= step <= last)
