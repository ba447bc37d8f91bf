"""The critical duration of an execution: EROICA, Algorithm 1, and equations 4 and 5."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.patterns.activity import Lane
from stepscope.patterns.compiled import busiest
from stepscope.patterns.use import Series, critical_use, in_order, own_use
from tests.patterns.slowly import critical_duration

MS = 1_000_000


def ints(*values: int) -> bytes:
    return np.array(values, np.int64).tobytes()


def duration(use: list[float], least: float = 0.0) -> tuple[int, int]:
    spans, _ = busiest(np.array(use).tobytes(), ints(0), ints(len(use)), 0.8, least)
    begin, end = np.frombuffer(spans, np.int64).tolist()
    return begin, end


def sampled(use: list[float], every_ns: int = MS, resource: str = "pcie_tx") -> Series:
    end = every_ns * (1 + np.arange(len(use)))
    return in_order(Series(resource, end - every_ns, end, np.array(use, np.float64)))


def test_waiting_before_the_transfer_is_not_of_the_critical_duration_as_in_figure_10() -> None:
    early = [0.3, 0, 0, 0, 0, 0, 0.9, 0.8, 0, 0.9, 1.0, 0.7, 0, 0, 0, 0, 0.1]
    assert duration(early) == (6, 12)


def test_all_of_it_if_nothing_was_used() -> None:
    assert duration([0.0, 0.0, 0.0]) == (0, 3)


def test_a_counter_that_never_reads_zero_needs_a_threshold() -> None:
    idling = [0.001] * 50 + [0.9] * 20 + [0.001] * 30
    assert duration(idling) == (0, 100)  # as published
    assert duration(idling, 0.005) == (50, 70)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from((0.0, 0.0, 0.0, 0.25, 0.5, 1.0)), min_size=1, max_size=24))
def test_it_is_what_the_papers_bisection_finds(use: list[float]) -> None:
    found = critical_duration(use)
    if not any(use):
        assert found is None and duration(use) == (0, len(use))
    else:
        assert found is not None and duration(use) == found[1:]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=20))
def test_no_samples_crash_it(use: list[float]) -> None:
    begin, end = duration(use)
    assert 0 <= begin <= end <= len(use)


def test_executions_outside_the_samples_are_refused() -> None:
    use = np.zeros(4).tobytes()
    for begin, end in ((0, 5), (-1, 2), (3, 2)):
        with pytest.raises(ValueError, match="outside"):
            busiest(use, ints(begin), ints(end), 0.8, 0.0)
    with pytest.raises(ValueError, match="above a half"):
        busiest(use, ints(0), ints(4), 0.5, 0.0)


def test_mu_and_sigma_by_hand() -> None:
    """Two executions: 4 ms at 0.5 and 0.25, and 2 ms at 1 after waiting.

    mu = (4 * 0.375 + 2 * 1) / 6, sigma = (4 * 0.125 + 2 * 0) / 6
    """
    series = sampled([0.5, 0.5, 0.25, 0.25, 0, 0, 0, 0, 1, 1])
    lane = Lane(np.array([0, 5 * MS]), np.array([4 * MS, 10 * MS]), np.array([0, 0]))
    use = critical_use(lane, 1, series)
    assert use.mu[0] == pytest.approx((4 * 0.375 + 2) / 6)
    assert use.sigma[0] == pytest.approx(4 * 0.125 / 6)


def test_what_was_not_measured_is_unknown() -> None:
    """A sample is of an execution if at least half of its period is."""
    series = sampled([1.0, 0.5, 0.5], every_ns=100 * MS)
    short = (120 * MS, 160 * MS)  # around the middle of a period, but less than half of it
    lane = Lane(np.array([0, short[0], 190 * MS]), np.array([100 * MS, short[1], 300 * MS]),
                np.array([0, 1, 2]))  # fmt: skip
    use = critical_use(lane, 4, series)
    assert use.mu[0] == 1.0 and use.mu[2] == 0.5
    assert np.isnan(use.mu[[1, 3]]).all() and np.isnan(use.sigma[[1, 3]]).all()


def test_a_python_function_that_waits_is_not_cut_short() -> None:
    """It is active in one tenth of its time; Algorithm 1 would call it busy."""
    instants = MS * np.arange(100)
    active = (np.arange(100) % 50 < 5).astype(np.float64)
    series = Series("cpu", instants, instants, active)
    lane = Lane(np.array([0]), np.array([100 * MS]), np.array([0]))
    use = own_use([lane], 1, [series])
    assert use.mu == pytest.approx([0.1]) and use.sigma == pytest.approx([0.3])


def test_a_sample_in_an_operator_is_not_of_the_function_that_calls_it() -> None:
    instants = MS * np.arange(40)
    series = Series("cpu", instants, instants, (instants >= 20 * MS).astype(np.float64))
    operators = Lane(np.array([20 * MS]), np.array([40 * MS]), np.array([0]))
    python = Lane(np.array([0]), np.array([40 * MS]), np.array([1]))
    use = own_use([operators, python], 2, [series])
    assert use.mu.tolist() == [1.0, 0.0] and use.sigma.tolist() == [0.0, 0.0]


def test_few_instants_tell_nothing_and_the_next_series_is_asked() -> None:
    instants = 10 * MS * np.arange(3)
    lane = Lane(np.array([0]), np.array([30 * MS]), np.array([0]))
    few = Series("cpu", instants, instants, np.ones(3))
    assert np.isnan(own_use([lane], 1, [few]).mu[0])
    phase = Series("cpu", np.array([0]), np.array([30 * MS]), np.array([0.4]))
    assert own_use([lane], 1, [few, phase]).mu[0] == 0.4
