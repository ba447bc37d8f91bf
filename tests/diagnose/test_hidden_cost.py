"""Jobs of which too little was recorded to say that nothing is wrong, or what it costs."""

from __future__ import annotations

import pytest

from stepscope.diagnose.run import diagnose
from stepscope.evaluate.strip import STRIPS, Context
from stepscope.simulate import Scenario, simulate
from stepscope.simulate.parse import parse_fault
from stepscope.simulate.scenario import Parallelism
from stepscope.window import Window


@pytest.fixture(scope="module")
def job() -> Window:
    """A device at half its speed from the start, in tensor parallel groups of a pipeline."""
    fault = parse_fault("gpu_slow:ranks=12,factor=2")
    layout = Parallelism(tp=4, pp=2)
    return simulate(
        Scenario(ranks=16, steps=40, seed=8, parallelism=layout, faults=(fault,))
    ).window


def test_passes_with_unmeasured_waiting_are_not_healthy(job: Window) -> None:
    found = diagnose(STRIPS["durations-only"].apply(job, Context()))
    assert found.state == "unknown"
    assert "may be waiting, which nobody measured" in found.unaccounted


def test_calls_of_a_host_that_runs_ahead_do_not_limit_the_cost(job: Window) -> None:
    (true,) = diagnose(job).verdicts
    (found,) = diagnose(STRIPS["host-calls-only"].apply(job, Context())).verdicts
    assert found.ranks == true.ranks == (12,)
    assert true.lost_fraction is not None and true.lost_fraction > 0.3
    assert found.lost_fraction == pytest.approx(true.lost_fraction, abs=0.05)
