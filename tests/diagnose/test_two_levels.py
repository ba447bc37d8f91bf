"""Steps of two lengths in turns: not healthy, unless all ranks do more in the longer ones."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from stepscope.diagnose.detect.kernels.stall import stalled
from stepscope.diagnose.numeric.combs import Axis, best
from stepscope.diagnose.numeric.two_levels import long_kind
from stepscope.diagnose.run import diagnose

from .jobs import Fault, a_job

ALL = (0, 1, 2, 3)
Noise = Callable[[np.random.Generator, int], np.ndarray]
NOISES: dict[str, Noise] = {
    "even": lambda random, n: random.uniform(0, 0.3, n),
    "heavy tail": lambda random, n: np.log1p(0.1 * random.pareto(2, n)),
    "grows once": lambda random, n: 0.01 * random.normal(size=n) + 0.2 * (np.arange(n) > n / 2),
    "wave": lambda random, n: 0.2 * np.sin(np.arange(n) / 9) + 0.01 * random.normal(size=n),
}


def test_every_eighth_step_that_waits_for_data_on_all_ranks_is_jitter_and_a_period() -> None:
    pause = Fault(ALL, "data-load", 0, ms=40, every=8, computes=False)
    diagnosis = diagnose(a_job(noise=0.2, faults=[pause]))
    assert diagnosis.state == "jitter"
    assert "times as long as the others (steps " in diagnosis.windows[0].why
    assert diagnosis.periods[0].every == 8


def test_longer_work_of_all_ranks_now_and_then_is_healthy() -> None:
    work = Fault(ALL, "forward-compute", 0, ms=45, every=8)
    assert diagnose(a_job(noise=0.2, faults=[work])).state == "healthy"


def test_two_kinds_in_turns_are_told_apart() -> None:
    random = np.random.default_rng(0)
    long = random.random(80) < 0.4
    long[[0, -1]] = False
    found = long_kind(1e8 * np.exp(0.2 * long + 0.01 * random.normal(size=80)))
    assert np.array_equal(found, long)


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_noise_growth_and_drifts_are_one_kind(noise: Noise) -> None:
    random = np.random.default_rng(1)
    found = [long_kind(1e8 * np.exp(noise(random, 80))).any() for _ in range(100)]
    assert not any(found)


def test_six_long_steps_at_one_distance_are_a_period_even_in_few_steps() -> None:
    axis = Axis(np.arange(33), np.arange(33) * 10**9, 1e9)
    found = best(axis, np.arange(4, 33, 5))
    assert found is not None and found.log_chance < math.log(5e-4)


def test_a_rank_that_never_waits_as_long_as_the_others_stalls_in_every_window() -> None:
    random = np.random.default_rng(2)
    longest = 7.5e7 + 1e5 * random.normal(size=(16, 8))
    longest[10] = 5e6
    assert [one.rows for one in stalled(longest, [])] == [(10,)]
    longest[10, 1:] = 7.5e7
    assert stalled(longest, []) == []
