"""What a job as a whole is called, and the steps in which that shows.

Jitter is single long steps, a regression is steps that are longer from some step on, whether or not
they recovered, and slow means that nothing changed over time.
Paper: ARGUS (2026), section 6.1, calls jobs jittery or regressed by their step times alone. Here
what costs most counts as well: step times hardly show a rank that costs a few percent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect.steps.step_time import LEAST_SEGMENT
from stepscope.diagnose.finding import (
    AnomalousWindow,
    Cause,
    Finding,
    Slowdown,
    SlowLink,
    Span,
    State,
    Stuck,
    Unsteady,
    Verdict,
    Waste,
)
from stepscope.diagnose.numeric.stats import runs_of
from stepscope.diagnose.views.timeline import Timeline

IN_SINGLE_STEPS: tuple[Cause, ...] = ("gc", "jit_compile")
"""Causes that make single steps longer, wherever these lie. Our choice."""


@dataclass(frozen=True)
class Found:
    """What was found in a job."""

    line: Timeline
    blamed: Sequence[Finding]
    unsteady: Sequence[Unsteady]
    by_window: frozenset[str]
    """Methods whose findings are about whole windows, and say nothing of single steps."""

    @property
    def state(self) -> State:
        if any(isinstance(one, Stuck) and (one.kind == "hang" or one.unfinished)
               for one in self.blamed):  # fmt: skip
            return "hang"
        spikes = any(one.spikes for one in self.unsteady)
        if any(one.split is not None for one in self.unsteady):
            return "both" if spikes else "regression"
        span, steps = self._span, self.line.steps[self.line.warm_up :]
        throughout = span is not None and span[0] <= int(steps[0]) and span[1] >= int(steps[-1])
        if spikes and not throughout:
            return "jitter"
        if span is not None and int((steps < span[0]).sum()) >= LEAST_SEGMENT:
            return "regression"
        if not any(one.kind == "slowdown" for one in self.blamed):
            return "healthy"
        costliest = self._costliest
        passed = isinstance(costliest, SlowLink) and costliest.lost_of is not None
        return "jitter" if passed else "slow"

    def windows(self, verdicts: Sequence[Verdict]) -> tuple[AnomalousWindow, ...]:
        """The ranges of steps in which the job was abnormal, in order."""
        steps = self.line.steps
        windows = [AnomalousWindow("jitter", (int(steps[a]), int(steps[b])), one.why)
                   for one in self.unsteady for a, b in _runs(one.spikes)]  # fmt: skip
        last = int(steps[-1]) if len(steps) else 0
        windows += [AnomalousWindow("regression", (int(steps[one.split]), last), one.why)
                    for one in self.unsteady if one.split is not None]  # fmt: skip
        windows += [AnomalousWindow("hang", one.steps)
                    for one in verdicts if one.stands_still and one.steps]  # fmt: skip
        return tuple(sorted(windows or self._of(verdicts), key=lambda one: one.steps))

    def _of(self, verdicts: Sequence[Verdict]) -> Iterator[AnomalousWindow]:
        kind = self.state if self.state in ("regression", "jitter") else "slow"
        for one in verdicts:
            if one.steps:
                yield AnomalousWindow(kind, one.steps)

    @property
    def _span(self) -> Span | None:
        """The steps in all of which what costs most is there; None where it is in single ones."""
        one = self._costliest
        if one is None or not len(self.line.steps):
            return None
        if isinstance(one, Slowdown):
            in_all = one.suspect is not None and one.spikes in (None, one.of_steps)
        else:
            in_all = isinstance(one, Waste) and not one.in_turns
        if not in_all or one.method in self.by_window or one.cause in IN_SINGLE_STEPS:
            return None
        return one.steps

    @property
    def _costliest(self) -> Finding | None:
        known = [one for one in self.blamed if not isinstance(one, Stuck)]
        return max(known, key=lambda one: one.score * (one.lost_fraction or 0.0), default=None)


def _runs(columns: Sequence[int]) -> list[Span]:
    """Neighbouring columns as ranges, both ends included."""
    return [(int(run[0]), int(run[-1])) for run in runs_of(np.array(columns, np.int64))]
