"""What kernels took, out of counts and percentiles, and how far ranks are apart."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from stepscope.diagnose.numeric.mixtures import (
    Grid,
    Mixtures,
    mean_distances,
    sorted_distances,
)
from stepscope.window import Floats

Modes = Sequence[tuple[float, float, float]]
"""Of one rank: count, median and sigma of the logarithm."""


def mixtures(*ranks: Modes) -> Mixtures:
    owner = np.repeat(np.arange(len(ranks)), [len(modes) for modes in ranks])
    count, p50, sigma = np.array([mode for modes in ranks for mode in modes]).T
    return Mixtures.of(owner, count, p50, p50 * np.exp(2.326 * sigma))


def scattered(
    ranks: int, medians: Sequence[float], sigma: float, times: float = 1.0, seed: int = 0
) -> Mixtures:
    """Ranks that differ by 1 %; the first takes so many times as long."""
    random = np.random.default_rng(seed)
    p50 = np.array(medians) * np.exp(0.01 * random.normal(size=(ranks, len(medians))))
    p50[0] *= times
    sigmas = sigma * np.exp(0.1 * random.normal(size=p50.shape))
    return mixtures(*([(500.0, m, s) for m, s in zip(*rank, strict=True)]
                      for rank in zip(p50, sigmas, strict=True)))  # fmt: skip


def distance_matrix(some: Mixtures, grid: Grid) -> Floats:
    """`[rank, rank]`: all pairwise distances, in ns."""
    values = some.cdfs(grid.logs)
    return np.stack([grid.weights @ np.abs(values - values[:, [at]]) for at in range(len(some))])


def pairwise(some: Mixtures, grid: Grid) -> Floats:
    means: Floats = distance_matrix(some, grid).sum(axis=1) / (len(some) - 1)
    return means


def test_modes_are_rebuilt_from_count_median_and_tail() -> None:
    """Three of four executions about 100, one about 1,000: at 100 F is 3/4 Phi(0) = 0.375; one
    sigma above it, 0.75 Phi(1) = 0.631; between the modes 0.75."""
    one = mixtures([(300.0, 100.0, 0.1), (100.0, 1000.0, 0.2)])
    at = np.log([100.0, 100.0 * math.exp(0.1), 300.0, 1000.0])
    assert one.cdfs(at)[:, 0] == pytest.approx([0.375, 0.631, 0.75, 0.875], abs=1e-3)


def test_a_mean_knows_the_tail_and_a_typical_duration_does_not() -> None:
    some = mixtures([(10.0, 100.0, 0.5)], [(1.0, 100.0, 1e-6), (3.0, 200.0, 1e-6)])
    assert some.mean_ns == pytest.approx([100 * math.exp(0.125), 175.0], rel=1e-3)
    assert some.typical_ns == pytest.approx([100.0, 175.0])


def test_distance_of_two_durations_is_their_difference() -> None:
    some = mixtures([(9.0, 100.0, 1e-6)], [(5.0, 250.0, 1e-6)], [(5.0, 130.0, 1e-6)])
    matrix = distance_matrix(some, Grid.following(some, 256))
    assert matrix == pytest.approx(np.array([[0, 150, 30], [150, 0, 120], [30, 120, 0]]), rel=0.01)


def test_distance_of_a_distribution_and_its_double_is_its_mean() -> None:
    some = mixtures([(9.0, 100.0, 0.1)], [(9.0, 200.0, 0.1)])
    distance = distance_matrix(some, Grid.following(some, 256))[0, 1]
    assert distance == pytest.approx(100 * math.exp(0.005), rel=1e-3)


SHAPES = {
    "two modes": ((20e3, 65e3), 0.06, 1.3), "narrow and far apart": ((1e4, 1e6), 0.01, 1.3),
    "forty times": ((1e4,), 0.01, 40.0), "3 %": ((1e4,), 0.006, 1.03),
    "wide": ((1e4, 3e4, 2e5), 0.3, 1.3),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("points", "error"), [(64, 0.03), (256, 0.003)])
def test_few_points_are_enough(shape: str, points: int, error: float) -> None:
    medians, sigma, times = SHAPES[shape]
    some = scattered(300, medians, sigma, times)
    exact = sorted_distances(some, Grid.following(some, 8192))
    assert sorted_distances(some, Grid.following(some, points)) == pytest.approx(exact, rel=error)


@pytest.mark.parametrize("ranks", [2, 3, 40, 1500])
def test_sorting_gives_the_mean_of_all_pairs(ranks: int) -> None:
    some = scattered(ranks, (20e3, 65e3), 0.05, times=1.2)
    grid = Grid.following(some)
    expected = pairwise(some, grid)
    assert sorted_distances(some, grid) == pytest.approx(expected, rel=1e-9)
    # in C++ values are rounded to 2^-22 of their range
    assert mean_distances(some, grid) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("times", [1.05, 40.0])
def test_of_many_ranks_values_are_counted_within_a_bound(times: float) -> None:
    """And where one lies so far from all others that these are as one, they are sorted."""
    some = scattered(5000, (20e3, 65e3), 0.05, times)
    grid = Grid.following(some)
    values = some.cdfs(grid.logs)
    ranges_ns = grid.weights * (values.max(axis=1) - values.min(axis=1))
    error_ns = np.abs(mean_distances(some, grid) - sorted_distances(some, grid))
    # of the range of a point, and what the distribution itself is known to
    assert error_ns.max() <= ranges_ns.sum() * 2**-17 + grid.weights.sum() * 4e-7


def test_ranks_that_are_equal_or_alone_are_nowhere_apart() -> None:
    for some in (mixtures([(1.0, 5.0, 0.1)]), mixtures(*[[(1.0, 5.0, 0.1)]] * 3)):
        grid = Grid.following(some)
        assert list(mean_distances(some, grid)) == [0.0] * len(some)
        assert sorted_distances(some, grid) == pytest.approx(np.zeros(len(some)), abs=1e-9)


def test_renumbered_ranks_have_renumbered_distances() -> None:
    some = [[(5.0, 100.0 * (1 + 0.1 * at), 0.05)] for at in range(30)]
    turned = mixtures(*some[::-1])
    means = mean_distances(mixtures(*some), Grid.following(turned))
    assert mean_distances(turned, Grid.following(turned)) == pytest.approx(means[::-1], rel=1e-6)


def test_columns_that_do_not_fit_are_refused() -> None:
    from stepscope._native import mean_distances as native

    two, ranks = np.ones(2).tobytes(), np.array([0, 1, 2], np.uint32).tobytes()
    for begins, sigma in ((ranks, np.zeros(2).tobytes()), (ranks[:8], two), (ranks[4:] * 2, two)):
        with pytest.raises(ValueError):
            native(begins, two, sigma, two, two, two)
    with pytest.raises(ValueError):
        native(ranks, two, two, two, two, two[:8])
