"""Steps whose rows who follows a job has forgotten: how long each took is kept.

A lasting rise of the step time is seen by steps from before it (level 1), and those of a large job
are forgotten within a minute; 40 are needed at least. Without them a job that everybody slows down
would be told of as healthy again. Lossy: of a forgotten step nothing but its time is known, so a
rise that began before the rows that are kept has a cause only if a look found it at the time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.diagnose.detect import step_time as l1
from stepscope.diagnose.finding import AnomalousWindow, Diagnosis, State, StepSeries, Verdict
from stepscope.diagnose.views.timeline import WARM_UP_SHARE, WARM_UP_STEPS

MOST_STEPS = 2000
"""So long a job remembers how fast it was; then the new pace is what is usual."""
SAME_STEPS = 2 * l1.BLOCK
"""A change is found within a block of where it is, by this look and by that one."""
_RISEN: dict[State, State] = {"healthy": "regression", "slow": "regression", "jitter": "both"}


class Past:
    """What is known of a job from before the rows that are there."""

    def __init__(self) -> None:
        self._period_ns: dict[int, int] = {}
        self._first: int | None = None
        self._everyones: tuple[Verdict, ...] = ()

    def joined(self, now: Diagnosis) -> Diagnosis:
        """The diagnosis of the rows that are there, with what is known from before."""
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
        if self._first is not None and steps[0] < self._first:  # the job began anew
            self._period_ns, self._everyones = {}, ()
        self._first = steps[0]
        self._period_ns |= dict(zip(steps, now.series.duration_ns, strict=True))
        for step in sorted(self._period_ns)[:-MOST_STEPS]:
            del self._period_ns[step]
        blamed = tuple(one for one in now.verdicts if _is_everyones(one))
        self._everyones = blamed or self._everyones

    def _series(self) -> StepSeries:
        steps = sorted(self._period_ns)
        return StepSeries(tuple(steps), tuple(self._period_ns[step] for step in steps))

    def _still(self, now: Diagnosis, risen_at: int) -> list[Verdict]:
        """What everybody was blamed for when the step time rose, and nobody has said since."""
        said = {one.cause for one in now.verdicts}
        return [
            replace(one, steps=(one.steps[0], self._series().steps[-1]))
            for one in self._everyones
            if one.cause not in said and one.steps and abs(one.steps[0] - risen_at) <= SAME_STEPS
        ]


def _is_everyones(verdict: Verdict) -> bool:
    return verdict.kind == "slowdown" and not verdict.ranks and verdict.steps is not None


def _risen_at(series: StepSeries) -> int | None:
    """The step from which steps take longer for good."""
    warm_up = min(WARM_UP_STEPS, int(len(series.steps) * WARM_UP_SHARE))
    periods = np.array(series.duration_ns[warm_up:-1], np.float64)  # the last is not over
    periods[periods == 0] = np.nan
    change = l1.regression(periods)
    return None if change is None else series.steps[warm_up + change.split]
