"""ARGUS level 3, as published on hand-worked kernels and as we run it."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.detect.kernels.slow_kernel import Slower, slower
from stepscope.diagnose.detect.published.argus_l3 import as_published
from stepscope.window import Floats, Ints

from .kernel_jobs import healthy
from .test_mixtures import mixtures


def whole(ranks: int) -> list[Ints]:
    return [np.arange(ranks)]


def found(typical_ns: Floats, groups: list[Ints] | None = None) -> list[Slower]:
    return slower(typical_ns, groups or whole(len(typical_ns)), 100 * len(typical_ns))


def published(typical_ns: Floats) -> list[int]:
    """Of the first window."""
    some = mixtures(*([(1000.0, one, 0.05)] for one in typical_ns[:, 0]))
    return [int(row) for row in as_published(some)]


def rows(some: list[Slower]) -> list[int]:
    return [one.row for one in some]


def test_published_fence() -> None:
    """Durations 100, 101, 102, 103 and 110: mean distances 4, 3.25, 3, 3.25 and 8.5. Q1 is 3.25,
    Q3 is 4, and the fence 4 + 1.5 * 0.75 = 5.125."""
    result = as_published(
        mixtures(*([(9.0, d, 1e-6)] for d in (100.0, 101.0, 102.0, 103.0, 110.0)))
    )
    assert list(result) == [4]


def test_published_fence_flags_one_healthy_rank_in_twenty() -> None:
    """5.6 % by theory where ranks scatter normally; ours flags none of them."""
    typical = healthy(2000, windows=1)
    assert 0.03 < len(published(typical)) / 2000 < 0.08
    assert found(typical) == []


def test_published_fence_flags_fast_ranks_and_not_a_third_that_is_slow() -> None:
    typical = healthy(200, windows=5)
    typical[7] /= 1.5
    assert 7 in published(typical)
    assert found(typical) == []
    typical = healthy(200, windows=5)
    typical[:60] *= 1.3
    assert not set(published(typical)) & set(range(60))
    assert rows(found(typical)) == list(range(60))


@pytest.mark.parametrize(
    ("ranks", "windows", "times"),
    [(4, 1, 1.4), (4, 6, 1.3), (16, 2, 1.4), (16, 6, 1.1), (200, 1, 1.2), (200, 6, 1.07)],
)
def test_a_slow_rank_is_found(ranks: int, windows: int, times: float) -> None:
    typical = healthy(ranks, windows)
    typical[2] *= times
    (one,) = found(typical)
    assert (one.row, one.first, one.stop) == (2, 0, windows)
    assert np.median(typical[2]) / np.median(one.usual) == pytest.approx(times, rel=0.02)


def test_since_when() -> None:
    typical = healthy(32, windows=12)
    typical[2, 5:] *= 1.3
    (one,) = found(typical)
    assert (one.first, one.stop) == (5, 12)


def test_groups_are_judged_apart() -> None:
    typical = healthy(16)
    typical[8:] *= 3.0
    typical[1] *= 1.3
    assert rows(found(typical, [np.arange(8), np.arange(8, 16)])) == [1]


def test_below_the_floor_or_of_a_pair_nothing_is_said() -> None:
    typical = healthy(32, chips=0.0, noise=0.001)
    typical[2] *= 1.02
    typical[3, 4] *= 1.09
    assert found(typical) == []
    assert found(np.array([[1e5] * 5, [2e5] * 5])) == []


def test_equal_ticks_have_no_scale() -> None:
    """The published fence flags any rank a tick above the others here."""
    typical = np.full((100, 5), 2100.0)
    typical[:15] = 2132.0
    assert found(typical) == []


def test_a_rank_that_did_not_run_it_is_no_peer() -> None:
    typical = healthy(16)
    typical[5:9] = np.nan
    typical[2] *= 1.5
    typical[2, 1] = np.nan
    assert rows(found(typical)) == [2]


def test_half_of_a_group_makes_the_other_half_no_fast_ones() -> None:
    """As on one host of two that run a stage, where other stages show how ranks scatter."""
    typical = healthy(64)
    typical[8:16] *= 3.0
    stages = [np.arange(at, at + 16) for at in range(0, 64, 16)]
    assert [one.row for one in slower(typical, stages, 64)] == list(range(8, 16))


def test_heavy_tails_show_on_both_sides() -> None:
    flagged = sum(bool(found(healthy(64, windows=1, seed=seed, noise=0.03, tails=3.0)))
                  for seed in range(40))  # fmt: skip
    assert flagged <= 8


def test_renumbered_ranks_are_found_renumbered() -> None:
    typical = healthy(40)
    typical[[3, 11]] *= 1.4
    assert rows(found(typical)) == [3, 11]
    assert rows(found(typical[::-1])) == [28, 36]
