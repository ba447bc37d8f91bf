"""Step times of earlier steps, kept after a live diagnosis has dropped their rows.

A lasting rise of the step time is found by comparison with at least 40 earlier steps (level 1). The
rows of a large job are dropped within a minute, after which a job that is slow on all ranks would
be reported as healthy again. Lossy: only the step time of a dropped step is kept. So a rise from
before the kept rows has a cause only if an earlier diagnosis found one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.diagnose.detect.steps import step_time as l1
from stepscope.diagnose.finding import AnomalousWindow, Diagnosis, State, Verdict
from stepscope.diagnose.shown import StepSeries
from stepscope.diagnose.views.timeline import WARM_UP_SHARE, WARM_UP_STEPS

MOST_STEPS = 2000
"""Number of step times that are kept; after this many steps a new step time counts as normal. Our
simulator."""
SAME_STEPS = 2 * l1.BLOCK
"""Two diagnoses mean the same change if they place it within two blocks: each places it within one
block of the real one. Statistics."""
_RISEN: dict[State, State] = {"healthy": "regression", "slow": "regression", "jitter": "both"}


class Past:
    """The history of a job before the rows that are kept."""

    def __init__(self) -> None:
        self._period_ns: dict[int, int] = {}
        self._first: int | None = None
        self._job_wide: tuple[Verdict, ...] = ()

    def joined(self, now: Diagnosis) -> Diagnosis:
        """The diagnosis of the kept rows, extended by what is known from before."""
        self._remember(now)
        series = self._series()
        if not now.series.steps or series.steps[0] == now.series.steps[0]:
            return now
        risen_at = _risen_at(series)
        if risen_at is None or risen_at >= now.series.steps[0]:
            return replace(now, series=series)
        return replace(
            now, series=series, state=_RISEN.get(now.state, now.state),
            windows=(AnomalousWindow("regression", (risen_at, series.steps[-1])), *now.windows),
            verdicts=(*now.verdicts, *self._still(now, risen_at)),
        )  # fmt: skip

    def _remember(self, now: Diagnosis) -> None:
        steps = now.series.steps
        if not steps:
            return
        if self._first is not None and steps[0] < self._first:  # the job was restarted
            self._period_ns, self._job_wide = {}, ()
        self._first = steps[0]
        self._period_ns |= dict(zip(steps, now.series.duration_ns, strict=True))
        for step in sorted(self._period_ns)[:-MOST_STEPS]:
            del self._period_ns[step]
        job_wide = tuple(one for one in now.verdicts if one.kind == "slowdown"
                         and not one.ranks and one.steps is not None)  # fmt: skip
        self._job_wide = job_wide or self._job_wide

    def _series(self) -> StepSeries:
        steps = sorted(self._period_ns)
        return StepSeries(tuple(steps), tuple(self._period_ns[step] for step in steps))

    def _still(self, now: Diagnosis, risen_at: int) -> list[Verdict]:
        """The verdicts on all ranks from when the step time rose, unless reported again now."""
        reported = {one.cause for one in now.verdicts}
        return [
            replace(one, steps=(one.steps[0], self._series().steps[-1]))
            for one in self._job_wide
            if one.cause not in reported
            and one.steps
            and abs(one.steps[0] - risen_at) <= SAME_STEPS
        ]


def _risen_at(series: StepSeries) -> int | None:
    """The step from which on steps take longer permanently."""
    warm_up = min(WARM_UP_STEPS, int(len(series.steps) * WARM_UP_SHARE))
    periods = np.array(series.duration_ns[warm_up:-1], np.float64)  # the last step is not complete
    periods[periods == 0] = np.nan
    change = l1.regression(periods)
    return None if change is None else series.steps[warm_up + change.split]
