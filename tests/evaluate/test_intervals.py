"""Arithmetic of scores, against values worked out elsewhere."""

from __future__ import annotations

import pytest

from stepscope.evaluate.intervals import Confusion, Rate, median, rate


@pytest.mark.parametrize(
    ("hits", "of", "low", "high"),
    # Newcombe, "Two-sided confidence intervals for the single proportion", 1998, table I
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilsons_interval_is_the_published_one(hits: int, of: int, low: float, high: float) -> None:
    assert Rate(hits, of).interval == pytest.approx((low, high), abs=5e-5)


def test_of_nothing_everything_is_possible() -> None:
    assert Rate(0, 0).value is None
    assert Rate(0, 0).interval == (0.0, 1.0)


def test_a_rate_leaves_out_what_makes_no_sense_to_ask() -> None:
    assert rate([True, None, False, True]) == Rate(2, 3)


def test_the_median_of_equal_numbers_is_certain() -> None:
    found = median([20.0] * 5)
    assert found is not None
    assert (found.value, found.low, found.high) == (20.0, 20.0, 20.0)


def test_the_interval_of_a_median_holds_it_and_stays_within_the_numbers() -> None:
    found = median([1.0, 2.0, 3.0, 10.0, 30.0])
    assert found is not None and found == median([1.0, 2.0, 3.0, 10.0, 30.0])
    assert 1.0 <= found.low <= found.value == 3.0 <= found.high <= 30.0


def test_no_numbers_have_no_median() -> None:
    assert median([]) is None


def test_f1_is_the_harmonic_mean_of_precision_and_recall() -> None:
    one = Confusion(hits=8, misses=2, false=4)
    assert one.f1 == pytest.approx(2 * (8 / 12) * 0.8 / (8 / 12 + 0.8))


def test_f1_of_jobs_without_a_hang_and_without_an_alarm_is_unknown() -> None:
    assert Confusion().f1 is None
