"""Rises of all ranks with few steps before them: fast first steps are no warm-up."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.detect.steps.step_time import sudden
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.views.timeline import Timeline
from stepscope.window import Floats

from .jobs import Fault, a_job

ALL = tuple(range(8))


def of(first: list[float], then: float, steps: int) -> Timeline:
    """A job that takes so long in its first steps, and then in all others."""
    took = np.array([[*first, *(then,) * (steps - len(first))]]) * 1e9
    starts = (np.cumsum(took, axis=1) - took).astype(np.int64)
    return Timeline(np.zeros(1, np.int64), np.arange(steps), starts, took)


@pytest.mark.parametrize(
    ("first", "warm_up"),
    [
        ([3.0, 1.0, 1.0, 1.0], 1),
        ([3.0, 1.2, 1.0, 1.0], 2),
        ([3.0, 2.0, 2.0, 2.0], 4),
        ([1.0, 2.0, 2.0, 2.0], 4),
    ],
)
def test_steps_that_are_faster_than_later_ones_do_not_warm_up(
    first: list[float], warm_up: int
) -> None:
    assert of(first, 2.0, 40).warm_up == warm_up


def noisy(levels: list[float], sigma: float) -> Floats:
    noise = np.random.default_rng(3).normal(0, sigma, len(levels))
    return np.asarray(np.array(levels) * np.exp(noise) * 1e9)


def test_three_steps_before_a_rise_are_enough_if_it_is_large_against_the_scatter() -> None:
    change = sudden(noisy([1.0] * 3 + [1.3] * 12, 0.01))
    assert change is not None and change.split == 3
    assert change.ratio == pytest.approx(1.3, rel=0.02)
    assert sudden(noisy([1.0] * 3 + [1.3] * 12, 0.1)) is None, "single steps scatter as much"
    assert sudden(noisy([1.0] * 2 + [1.3] * 13, 0.01)) is None, "two steps may be anything"


def test_three_steps_after_warm_up_show_that_all_ranks_load_longer_since() -> None:
    slow = Fault(ALL, "data-load", 6, 40, ms=30)
    (one,) = diagnose(a_job(ranks=8, steps=40, noise=0.01, faults=[slow])).verdicts
    assert (one.cause, one.ranks, one.steps) == ("data_loading", (), (6, 39))


def test_with_two_steps_before_it_a_rise_leaves_the_state_unknown() -> None:
    slow = Fault(ALL, "backward-compute", 5, 16, ms=30)
    diagnosis = diagnose(a_job(ranks=8, steps=16, noise=0.01, faults=[slow]))
    assert diagnosis.state == "unknown"
    assert "only 2 steps before" in diagnosis.unaccounted
