"""A rank that was much slower for some steps in a row, long ago: a suspect, and a window."""

from __future__ import annotations

import pytest

from stepscope.diagnose.run import diagnose
from stepscope.window import Window
from tests.diagnose.jobs import TYPICAL_MS, Fault, a_job


def slow_for(steps: int, times: float) -> Window:
    """Steps of a second, and one rank whose backward pass takes longer from step 120 on."""
    slow = Fault((3,), "backward-compute", 120, 120 + steps, times=times)
    typical = {phase: 10 * ms for phase, ms in TYPICAL_MS.items()}
    return a_job(8, 300, 0.01, faults=[slow], stacks=False, typical=typical)


def test_ten_steps_at_half_speed_are_a_window_and_a_suspect() -> None:
    found = diagnose(slow_for(10, 1.8))
    (verdict,) = found.verdicts
    assert verdict.is_suspect
    assert (verdict.ranks, verdict.steps) == ((3,), (120, 129))
    assert verdict.summary.endswith("from step 120 to step 129")
    assert found.state == "jitter"
    assert [one.steps for one in found.windows] == [(120, 129)]


@pytest.mark.parametrize(("steps", "times"), [(2, 1.8), (10, 1.12)])
def test_what_is_shorter_or_smaller_is_not_worth_a_word(steps: int, times: float) -> None:
    assert diagnose(slow_for(steps, times)).verdicts == ()
