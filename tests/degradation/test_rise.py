"""Series of step times, and whether they count as a job that has become slower."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.degradation.published import AVERAGED, PublishedRise
from stepscope.degradation.robust import WARM_UP_STEPS, RobustRise
from stepscope.window import Floats

STEPS = 600


def steps(noise: float = 0.03, count: int = STEPS, seed: int = 0) -> Floats:
    """Steps of a second: each is a unit."""
    return np.exp(noise * np.random.default_rng(seed).normal(size=count))


def first(series: Floats) -> int | None:
    """The step at which the default rule triggers."""
    watch = RobustRise()
    return next((at for at, step in enumerate(series) if watch.add(step) is not None), None)


def first_published(series: Floats) -> int | None:
    watch = PublishedRise()
    return next((at for at, step in enumerate(series) if watch.add(step) is not None), None)


def slower_from(begin: int, ratio: float, series: Floats) -> Floats:
    return np.where(np.arange(series.size) < begin, series, ratio * series)


def test_a_job_that_takes_half_as_long_again_is_found_within_fifteen_steps() -> None:
    found = first(slower_from(300, 1.5, steps()))
    assert found is not None and 307 <= found < 315


def test_six_percent_are_found_within_sixty_steps_at_three_percent_noise() -> None:
    found = first(slower_from(300, 1.06, steps()))
    assert found is not None and 300 < found < 360


def test_twice_as_long_is_found_where_little_is_known_of_the_noise() -> None:
    found = first(slower_from(55, 2.0, steps(0.1)))
    assert found is not None and found < 75


def test_four_percent_are_not_worth_a_profile() -> None:
    assert first(slower_from(300, 1.04, steps(0.01))) is None


def test_a_stall_in_every_fourth_step_is_found() -> None:
    """As when three of four loader workers keep pace: the median does not change at all."""
    series = steps()
    series[300::4] += 1.0
    assert first(series) is not None


def test_a_slow_rise_is_found() -> None:
    series = steps() * (1 + 0.2 * np.clip(np.arange(STEPS) - 100, 0, None) / 500)
    assert first(series) is not None


@pytest.mark.parametrize("noise", [0.03, 0.10, 0.30])
def test_noise_is_not_a_rise(noise: float) -> None:
    assert first(steps(noise, 2_000)) is None


def test_slow_first_steps_are_not_what_is_usual() -> None:
    series = steps()
    series[:60] *= np.linspace(8, 1, 60)
    assert first(series) is None
    assert first(slower_from(300, 1.5, series)) is not None


def test_checkpoints_and_evaluations_are_pauses() -> None:
    series = steps()
    series[49::50] += 20.0
    series[199::200] += 300.0
    assert first(series) is None
    assert first_published(series) is not None, "the published rule takes them for a degradation"


def test_new_epochs_begin_slowly() -> None:
    series = steps()
    for epoch in range(100, STEPS, 100):
        series[epoch : epoch + 5] += 2.0
    assert first(series) is None


def test_a_job_that_swings_between_two_speeds_has_been_seen_slow_before() -> None:
    series = steps()
    for swing in range(100, STEPS, 100):
        series[swing : swing + 50] *= 1.3
    found = first(series)
    assert found is not None and found < 150, "the first time it is news"
    watch = RobustRise()
    later = [at for at, step in enumerate(series) if watch.add(step) is not None and at > 250]
    assert later == []


def test_a_slowness_of_two_seconds_is_over_before_anybody_could_look() -> None:
    """Steps of 20 ms: a hundred of them are slow."""
    series = 0.02 * steps(count=3_000)
    assert first(slower_from(2_000, 1.5, series)) is not None
    series[2_000:2_100] *= 1.5
    assert first(series) is None


def test_after_a_restart_the_slow_time_is_the_usual_one() -> None:
    watch = RobustRise()
    found = 0
    for step in slower_from(300, 1.5, steps()):
        if watch.add(step) is not None:
            found += 1
            watch.restart()
    assert found == 1
    assert watch.usual == pytest.approx(1.5, rel=0.05)


@given(st.lists(st.floats(0, 1e6), max_size=300), st.sampled_from([0.0, 1e-9, 1e6]))
def test_any_times_are_judged(series: list[float], last: float) -> None:
    watch = RobustRise()
    for step in [*series, *[last] * 50]:
        watch.add(step)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from([0.01, 0.05, 0.1]))
def test_independent_noise_never_triggers(seed: int, noise: float) -> None:
    """At most once in 10^5 units (docs/methods/eroica-detect.md): not in these few hundred."""
    assert first(steps(noise, 200, seed)) is None


def test_published_by_hand() -> None:
    """Fifty steps of 100 and one of 370: the mean of the newest fifty is 105.4."""
    watch = PublishedRise()
    assert [watch.add(100.0) for _ in range(AVERAGED)] == [None] * AVERAGED
    assert watch.add(350.0) is None, "5 % is not more than 5 %"
    assert watch.add(120.0) == pytest.approx(1.054)


def test_published_to_the_letter_fires_on_three_percent_noise() -> None:
    """The shortest single iteration is far below the mean of fifty."""
    watch = PublishedRise(shortest_of=1)
    assert any(watch.add(step) is not None for step in steps(0.03, 100))
    assert first_published(steps(0.03, 2_000)) is None


def test_the_first_steps_are_skipped() -> None:
    assert first(np.concatenate((np.full(WARM_UP_STEPS, 1e-3), steps(0.01, 100)))) is None
