"""What samples say of a span that they do not lie in."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.views.samples import Sampled, sampled
from stepscope.window import Floats, Strings, Table

SECOND = 10**9


def samples(*rows: tuple[int, float, float]) -> Sampled:
    """Of rank, second, value; two ranks."""
    rank, second, value = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    table = Table({
        "metric": Strings.of(["run_delay"] * len(rows)),
        "ts_ns": (second * SECOND).astype(np.int64), "value": value,
    })  # fmt: skip
    return sampled(table, "run_delay", rank.astype(np.int64), 2)


def mean(one: Sampled, begin: float, end: float) -> Floats:
    return one.mean(int(begin * SECOND), int(end * SECOND))


EACH_SECOND = samples(*((0, at, 0.9 if at == 5 else 0.1) for at in range(1, 10)), (1, 5, 0.2))


def test_a_moment_between_two_samples_is_known_from_the_next_one() -> None:
    assert mean(EACH_SECOND, 4.2, 4.4)[0] == pytest.approx(0.9)
    assert mean(EACH_SECOND, 5.2, 5.4)[0] == pytest.approx(0.1)


def test_samples_count_for_as_long_as_they_tell_of() -> None:
    assert mean(EACH_SECOND, 3.5, 5.0)[0] == pytest.approx((0.5 * 0.1 + 0.9) / 1.5)


def test_a_moment_without_a_sample_is_unknown() -> None:
    assert np.isnan(mean(EACH_SECOND, 20, 30)).all()
    assert np.isnan(mean(EACH_SECOND, 2, 3)[1])
    assert mean(EACH_SECOND, 4.5, 4.6)[1] == pytest.approx(0.2)


def test_after_a_gap_a_sample_counts_for_a_moment_only() -> None:
    after_gap = samples(*((0, at, 0.1) for at in (1, 2, 3, 4, 60)))
    assert np.isnan(mean(after_gap, 20, 30)[0])
    assert mean(after_gap, 58.5, 59.0)[0] == pytest.approx(0.1)


def test_a_counter_that_was_not_recorded() -> None:
    table = Table({"metric": Strings.of(["load1"]), "ts_ns": np.array([1]), "value": np.ones(1)})
    assert np.isnan(sampled(table, "run_delay", np.array([0]), 2).mean(0, SECOND)).all()
