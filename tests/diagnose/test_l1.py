"""ARGUS level 1, as published on hand-worked series and as we run it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.diagnose.detect.published.argus_l1 import (
    jitter_as_published,
    largest_rise,
    regression_as_published,
    wide_windows,
)
from stepscope.diagnose.detect.steps.step_time import jitter, regression, scheduled
from stepscope.window import Floats, Ints


def noisy(level: Floats, noise: float, seed: int = 0) -> Floats:
    return np.asarray(level * np.exp(noise * np.random.default_rng(seed).normal(size=level.size)))


def steps_of(series: Floats) -> Ints:
    return np.arange(series.size)


def test_published_jitter_recovers_the_width_of_a_narrow_spike() -> None:
    """W = 5 smears two spiked points over eight windows; the second phase finds the two again."""
    series = np.array([10.0] * 10 + [20.0, 20.0] + [10.0] * 10)
    assert jitter_as_published(series, width=5, ratio=1.5) == [(10, 12)]


def test_published_jitter_sees_nothing_below_its_ratio() -> None:
    assert jitter_as_published(np.array([10.0, 11.0] * 20), width=5, ratio=1.2) == []


def test_published_change_point_takes_the_largest_ratio() -> None:
    """Means 10 and 15: every other split has a smaller ratio of means."""
    assert regression_as_published(np.array([10.0] * 6 + [15.0] * 4)) == (6, 1.5)


def test_published_change_point_wants_both_sides_stable() -> None:
    """The right side alternates between 5 and 25: relative deviation 0.67."""
    assert regression_as_published(np.array([10.0] * 6 + [5.0, 25.0, 5.0, 25.0])) is None


@given(st.lists(st.floats(1.0, 100.0), min_size=1, max_size=60), st.data())
def test_a_window_is_wide_when_its_largest_is(series: list[float], data: st.DataObject) -> None:
    width = data.draw(st.integers(1, len(series)))
    wide = wide_windows(np.array(series), width, 1.2)
    windows = [series[at : at + width] for at in range(len(series) - width + 1)]
    assert list(wide) == [max(window) > 1.2 * min(window) for window in windows]


@pytest.mark.parametrize("count", [1019, 1020, 1043, 1044, 2100])
def test_wide_windows_of_long_series(count: int) -> None:
    """Lengths about the tiles in which windows are worked on."""
    series = noisy(np.full(count, 10.0), 0.05)
    windows = np.lib.stride_tricks.sliding_window_view(series, 20)
    expected = windows.max(axis=1) > 1.2 * windows.min(axis=1)
    assert (wide_windows(series, 20, 1.2) == expected).all()


@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 258, 700])
@pytest.mark.parametrize("at", [0.0, 0.3, 0.7, 0.999])
def test_the_largest_rise_is_found_split_by_split(count: int, at: float) -> None:
    """Lengths about the tiles in which splits are worked on; the oracle divides, split by split."""
    series = noisy(np.full(count, 1e9), 0.02)
    series[int(at * count) :] *= 1.3
    found, best = regression_as_published(series), (0, 1.1)
    for split in range(1, count):
        left, right = series[:split], series[split:]
        steady = left.std() < 0.1 * left.mean() and right.std() < 0.1 * right.mean()
        if steady and right.mean() > best[1] * left.mean():
            best = (split, right.mean() / left.mean())
    for one in (found, largest_rise(series, 1.1, 0.1)):
        assert one == (pytest.approx(best) if best[0] else None)


def test_rare_spikes_hide_a_change_from_the_published_detector_only() -> None:
    """Algorithm notes, section 4: a 3x spike every 50 steps hides a step of 1.1."""
    series = noisy(np.repeat([10.0, 11.5], 150), 0.02)
    series[::50] *= 3
    assert regression_as_published(series) is None
    found = regression(series)
    assert found is not None
    assert abs(found.split - 150) <= 2
    assert found.ratio == pytest.approx(1.15, abs=0.01)


def test_noise_makes_jitter_only_as_published() -> None:
    series = noisy(np.full(300, 10.0), 0.05)
    assert jitter_as_published(series)
    assert jitter(series, steps_of(series)).columns.size == 0


def test_a_spike_is_found_where_it_is() -> None:
    series = noisy(np.full(300, 10.0), 0.05)
    series[200:203] = 40
    spikes = jitter(series, steps_of(series))
    assert list(spikes.columns) == [200, 201, 202]


def test_a_checkpoint_every_fifty_steps_is_on_schedule() -> None:
    series = noisy(np.full(300, 10.0), 0.05)
    series[::50] = 80
    assert jitter(series, steps_of(series)).columns.size == 0


def test_slow_first_steps_are_the_start_of_the_job() -> None:
    series = np.array([40.0, 31.0, 10.0, 10.2, 10.1, 9.9, 40.0, 10.0])
    assert list(jitter(series, steps_of(series), warming=4).columns) == [6]
    assert list(jitter(series[1:6], steps_of(series[1:6])).columns) == [0]


def test_a_spike_off_schedule_stays() -> None:
    steps = np.arange(1000, 1300)
    spikes = np.array([1000, 1050, 1077, 1100, 1150, 1200, 1250])
    assert list(spikes[~scheduled(spikes, steps)]) == [1077]


@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_no_regression_in_noise(noise: float) -> None:
    alarms = sum(regression(noisy(np.full(200, 10.0), noise, seed)) is not None
                 for seed in range(100))  # fmt: skip
    assert alarms <= 1


@pytest.mark.parametrize("steps", [18, 24, 39])
def test_a_jump_in_few_steps_is_found_and_noise_is_none(steps: int) -> None:
    """Two halves of twenty steps each would need forty."""
    level = np.where(np.arange(steps) < 0.45 * steps, 10.0, 12.5)
    found = [regression(noisy(level, 0.02, seed)) for seed in range(20)]
    assert sum(one is not None for one in found) >= 17
    assert all(abs(one.ratio - 1.25) < 0.05 for one in found if one is not None)
    flat = (noisy(np.full(steps, 10.0), 0.05, seed) for seed in range(200))
    assert sum(regression(series) is not None for series in flat) <= 1


def test_a_fall_is_no_regression() -> None:
    assert regression(noisy(np.repeat([15.0, 10.0], 100), 0.05)) is None


@pytest.mark.parametrize("series", [[], [5.0], [0.0] * 100, [np.nan] * 100, [7.0] * 100])
def test_degenerate_series(series: list[float]) -> None:
    values = np.array(series)
    assert regression(values) is None
    assert jitter(values, steps_of(values)).columns.size == 0


def test_any_two_spikes_have_an_interval_but_only_people_choose_round_ones() -> None:
    steps = np.arange(1000, 1100)
    assert not scheduled(np.array([1049, 1056]), steps).any()
    assert scheduled(np.array([1049, 1099]), steps).all()
    assert scheduled(np.array([1049, 1056, 1063]), steps).all()


@pytest.mark.parametrize("steps", [42, 56])
def test_a_rise_in_the_middle_of_a_few_segments_is_found(steps: int) -> None:
    """Blocks of five steps are too few there to know their own scatter."""
    level = np.where(np.arange(steps) < steps // 2, 1.0, 1.12)
    found = [regression(noisy(level, 0.035, seed)) for seed in range(20)]
    assert sum(one is not None and abs(one.split - steps // 2) <= 1 for one in found) >= 17


def test_a_large_rise_late_in_a_noisy_job_is_found() -> None:
    """Six times as long in the last third: clipped at 1.3 medians, it drowns in 20 % noise."""
    level = np.where(np.arange(60) < 40, 100.0, 600.0)
    found = [regression(noisy(level, 0.2, seed)) for seed in range(20)]
    assert all(one is not None and abs(one.split - 40) <= 1 for one in found)


def test_where_steps_take_many_times_as_long_is_found_to_the_step() -> None:
    """Before it, one step in five takes twice as long: clipped, these look like the rise."""
    for seed in range(20):
        series = noisy(np.where(np.arange(100) < 70, 100.0, 1000.0), 0.05, seed)
        series[np.random.default_rng(seed).choice(70, 14, replace=False)] *= 2
        found = regression(series)
        assert found is not None and found.split == 70


def test_healthy_series_of_a_few_segments_stay_silent() -> None:
    assert not any(regression(noisy(np.ones(50), 0.05, seed)) for seed in range(100))
