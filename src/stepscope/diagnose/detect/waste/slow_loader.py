"""Data loading that holds a large part of every step of a job of one rank.

Fault: the training loop waits for its DataLoader, most often because it has no worker processes and
loads each batch between two steps.
Paper: none. A single rank has no peers to be compared with, and what was slow from the first step
on has no past either. So it is judged by what it wastes: the time that the main thread spends in
the loader, as far as the device idles, or all of it where no device was recorded. It must be
clearly more than is ordinary (`account.belief`), as for several ranks (`shared-loading`).
Cost: one sort of the kernels. Cannot see: jobs of several ranks, which are compared with one
another; whether the loader is slow or the rest of the step is short.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.diagnose.account.belief import LOADING, odds, unusual_bits
from stepscope.diagnose.detect.waste.shared_loading import loading_function
from stepscope.diagnose.finding import Slowdown
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import LEAST_SCORE
from stepscope.diagnose.words.numbers import percent
from stepscope.diagnose.words.summary import short_frame
from stepscope.trace import DATA_LOAD
from stepscope.window import Floats, union

SCORES = ((10, 0.9), (5, 0.85), (3, 0.75), (2, 0.55), (1, 0.5))
"""The highest score from so many steps on. The first batch of an epoch takes longest, because
workers start, so a single step is as likely to mislead. Our choice."""


class SlowLoader:
    """Data loading that holds clearly more than is ordinary of the steps of a single rank."""

    name = "slow-loader"
    needs = Needs("phases")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        if len(job.line.ranks) != 1 or so_far.blamed or DATA_LOAD not in job.own.phases:
            return
        loading = job.own.of(DATA_LOAD)[0, job.line.warm_up :]
        period = job.line.period_ns[0, job.line.warm_up :]
        known = np.isfinite(loading) & np.isfinite(period) & (period > 0)
        if known.any():
            yield from _found(job, loading[known], period[known])


def _found(job: Observed, loading: Floats, period: Floats) -> Iterator[Slowdown]:
    """The verdict, if loading costs enough in most steps."""
    share = stats.median(loading / period)
    exposed = _exposed(job)
    lost = share * exposed
    sure = odds(unusual_bits(lost, LOADING), lost)
    if sure < LEAST_SCORE:
        return
    first, rank, steps = job.line.warm_up, int(job.line.ranks[0]), int(loading.size)
    each = "the only recorded step" if steps == 1 else f"each of {steps} steps"
    load_ms, step_ms = (stats.median(one) / 1e6 for one in (loading, period))
    detail = (f"the main thread spends {load_ms:.1f} ms of {each} ({step_ms:.1f} ms) in its "
              f"DataLoader, and the device idles in {percent(exposed)} of that")  # fmt: skip
    function = loading_function(job, first, len(job.line.steps))
    says = f"rank {rank} spends {percent(lost)} of its steps waiting for its DataLoader"
    says += f", in {short_frame(function)}" if function else ""
    yield Slowdown(
        method="slow-loader", cause="data_loading", detail=detail, ranks=(rank,), phase=DATA_LOAD,
        steps=job.line.span(first, len(job.line.steps)),
        time_ns=job.line.span_ns(first, len(job.line.steps)),
        slowdown=1 / max(1 - lost, 0.01), lost_fraction=lost, victims=0,
        score=min(sure, next(score for least, score in SCORES if steps >= least)),
        says=says, function=function,
        values={"share": share, "exposed": exposed, "steps": steps},
    )  # fmt: skip


def _exposed(job: Observed) -> float:
    """The part of the time in the loader in which the device has nothing to do; 1 without a
    device."""
    phases, kernels = job.window.tables["phases"], job.window.table("kernels")
    if kernels is None:
        return 1.0
    loads = phases.take(phases.strings("phase").equals(DATA_LOAD))
    begin, end = loads.ints("start_ns"), loads.ints("start_ns") + loads.ints("duration_ns")
    start = kernels.ints("start_ns")
    busy = union(start, start + kernels.ints("duration_ns")).within(begin, end)
    return 1.0 - float(busy.sum()) / max(float((end - begin).sum()), 1.0)
