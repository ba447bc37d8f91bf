"""ARGUS level 2, as published on hand-worked groups and as we run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from stepscope.diagnose.detect.published.argus_l2 import (
    Singles,
    imbalances,
    imbalances_by_group,
)
from stepscope.diagnose.detect.ranks.straggler import log_ratios, stragglers
from stepscope.diagnose.numeric.stats import window_width
from stepscope.window import Floats, Ints

from .jobs import MS

Imbalances = Callable[[Singles, Sequence[Ints]], tuple[Singles, Singles]]
WAYS = pytest.mark.parametrize("way", [imbalances, imbalances_by_group])


def whole(ranks: int) -> list[Ints]:
    return [np.arange(ranks)]


def own_times(ranks: int, steps: int = 100, noise: float = 0.05, seed: int = 0) -> Floats:
    normal = np.random.default_rng(seed).normal(size=(ranks, steps))
    return np.asarray(50.0 * MS * np.exp(noise * normal))


@WAYS
def test_published_arithmetic(
    way: Imbalances,
) -> None:
    """Mean 11, deviation sqrt((1 + 1 + 1 + 9) / 3) = 2: CV 2/11, z of the last 3/2."""
    cv, z = way(np.array([[10.0, 10.0, 10.0, 14.0]], np.float32), whole(4))
    assert cv[0, 0] == pytest.approx(2 / 11)
    assert z[0] == pytest.approx([-0.5, -0.5, -0.5, 1.5])


@WAYS
def test_published_z_cannot_reach_three_among_ten(
    way: Imbalances,
) -> None:
    """z <= (n - 1) / sqrt(n) = 2.85, however slow the tenth is."""
    _, z = way(np.array([[1.0] * 9 + [1000.0]], np.float32), whole(10))
    assert z.max() == pytest.approx(9 / np.sqrt(10))


@WAYS
def test_many_groups_at_once_are_as_each_for_itself(
    way: Imbalances,
) -> None:
    """Five phases of 31 ranks: a group of twenty, one of nine, one alone; rank 30 is in none."""
    mean_ns = own_times(5, 31).astype(np.float32)
    mean_ns[:, 3] *= 1.5
    ranks = np.random.default_rng(1).permutation(30)
    groups = [ranks[:20], ranks[20:29], ranks[29:]]
    cv, z = way(mean_ns, groups)
    for row, values in enumerate(mean_ns):
        for at, group in enumerate(groups):
            own = values[group].astype(np.float64)
            deviation = own.std(ddof=1) if own.size > 1 else 0.0
            assert cv[row, at] == pytest.approx(deviation / own.mean(), rel=1e-4)
            expected = (own - own.mean()) / deviation if deviation else 0.0 * own
            assert z[row, group] == pytest.approx(expected, abs=1e-3)
    assert not z[:, 30].any()


@WAYS
def test_equal_ranks_and_no_ranks_are_balanced(
    way: Imbalances,
) -> None:
    cv, z = way(np.full((2, 4), 7.0, np.float32), whole(4))
    assert not cv.any()
    assert not z.any()
    assert imbalances(np.empty((0, 4), np.float32), whole(4))[1].shape == (0, 4)


def test_ratios_are_to_the_median_of_the_others() -> None:
    own = np.array([[1.0], [2.0], [4.0], [8.0]])
    expected = np.log([1 / 4, 2 / 4, 4 / 2, 8 / 2])
    assert np.allclose(log_ratios(own, whole(4), 0.0)[:, 0], expected)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_one_slow_rank_in_groups_of_any_size(ranks: int) -> None:
    own = own_times(ranks)
    own[1] *= 1.3
    (found,) = stragglers(own, whole(ranks), 100.0 * MS, "p", ranks)
    assert (found.row, found.first, found.stop) == (1, 0, 100)
    assert found.effect == pytest.approx(np.log(1.3), rel=0.1)


def test_two_of_eight() -> None:
    """The published rule finds these in 5 % of cases (algorithm notes, section 4)."""
    own = own_times(8)
    own[[2, 5]] *= 1.3
    assert [one.row for one in stragglers(own, whole(8), 100.0 * MS, "p", 8)] == [2, 5]


def test_groups_are_judged_apart() -> None:
    own = own_times(8)
    own[4:] *= 3.0
    groups = [np.arange(4), np.arange(4, 8)]
    assert stragglers(own, groups, 100.0 * MS, "p", 8) == []


def test_a_phase_too_short_to_matter_is_let_be() -> None:
    own = own_times(4) / 1000
    own[1] *= 3
    assert stragglers(own, whole(4), 100.0 * MS, "p", 4) == []


def test_three_percent_is_below_the_floor() -> None:
    own = own_times(4, noise=0.005)
    own[1] *= 1.03
    assert stragglers(own, whole(4), 100.0 * MS, "p", 4) == []


def test_every_fifth_step_leaves_no_mark() -> None:
    own = own_times(4)
    own[1, ::5] *= 10
    assert stragglers(own, whole(4), 100.0 * MS, "p", 4) == []


def test_identical_times_have_no_scale() -> None:
    assert stragglers(np.full((4, 100), 50.0 * MS), whole(4), 100.0 * MS, "p", 4) == []


def test_unknown_values_count_for_nothing() -> None:
    own = own_times(4)
    own[1] *= 1.5
    own[0, ::3] = np.nan
    own[2] = np.nan
    assert [one.row for one in stragglers(own, whole(4), 100.0 * MS, "p", 4)] == [1]


def test_healthy_ranks_are_rarely_flagged() -> None:
    flagged = sum(len(stragglers(own_times(8, seed=seed), whole(8), 100.0 * MS, "p", 8))
                  for seed in range(200))  # fmt: skip
    assert flagged == 0


@pytest.mark.parametrize(("steps", "width"), [(12, 2), (60, 10), (200, 10), (6400, 100)])
def test_windows(steps: int, width: int) -> None:
    assert window_width(steps) == width


@pytest.mark.parametrize(("times", "found"), [(1.0, False), (2.5, True)])
def test_of_two_ranks_one_that_is_slow_in_plain_sight_is_found(times: float, found: bool) -> None:
    """Few windows say little of their noise: certainty is low, however large the difference."""
    random = np.random.default_rng(3)
    wandering = np.repeat(np.exp(0.15 * random.normal(size=(2, 8))), 10, axis=1)
    own = 20e6 * wandering * np.exp(0.2 * random.normal(size=(2, 80)))
    own[1] *= times
    rows = [one.row for one in stragglers(own, [np.array([0, 1])], 50e6, "forward-compute", 12)]
    assert rows == ([1] if found else [])
