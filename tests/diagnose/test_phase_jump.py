"""A rise that step times show as gradual began where a phase jumped."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.detect.regression.phase_jump import phase_jump
from stepscope.diagnose.detect.steps.gradual import Trend
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.clean import clean
from stepscope.window import Floats

from .jobs import MS
from .loops import BACKWARD, STEPS, Loop, a_table, a_window

SINCE = 44


def jump_of(more_ms: Floats) -> int | None:
    """The step from which backward takes longer on all ranks, while the steps seem to rise."""
    loop = Loop()
    loop.work[BACKWARD] += more_ms
    job = Observed(clean(a_window(a_table(loop.phases())))[0])
    found = phase_jump(job, Trend(20, 60, 140.0 * MS, 170.0 * MS, 0.1, 9.0))
    return None if found is None else int(job.line.steps[found.split])


def test_a_phase_that_grew_at_once_says_when() -> None:
    assert jump_of(np.where(np.arange(STEPS) < SINCE, 0.0, 30.0)) == SINCE


@pytest.mark.parametrize("most", [30.0, 100.0])
def test_what_grows_step_by_step_stays_gradual(most: float) -> None:
    assert jump_of(np.interp(np.arange(STEPS), (25, 65), (0.0, most))) is None


def test_a_phase_that_grew_by_little_of_it_says_nothing() -> None:
    assert jump_of(np.where(np.arange(STEPS) < SINCE, 0.0, 12.0)) is None
