"""Ranks that are slow for some steps in a row, too few for windows of ten."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.detect.ranks.short_stretch import stragglers
from stepscope.diagnose.run import diagnose
from stepscope.window import Floats, Window

from .jobs import TYPICAL_MS, Fault, a_job, scatter

SECOND = 1e9
RANKS = 8
SLOWLY = {name: 6 * each for name, each in TYPICAL_MS.items()}
"""Half a second per step."""


def own(ranks: int, steps: int, noise: float = 0.05, lasting: float = 0.2, seed: int = 0) -> Floats:
    return scatter(np.random.default_rng(seed), (ranks, steps), noise, lasting) * SECOND


def found(times: Floats) -> list[tuple[int, int, int]]:
    ranks = len(times)
    slow = stragglers(times, [np.arange(ranks)], SECOND, "forward", 3 * ranks)
    return [(one.row, one.first, one.stop) for one in slow]


def operators_only(faults: list[Fault], steps: int = 60) -> Window:
    """Where only collectives were recorded, a single long spike may be a checkpoint."""
    window = a_job(RANKS, steps, 0.02, faults=faults, stacks=False, typical=SLOWLY)
    return Window(window.job, {name: window.tables[name] for name in ("comm_ops", "steps")})


@pytest.mark.parametrize("length", [5, 6, 10, 15])
def test_a_rank_twice_as_slow_for_some_steps_is_found_with_these_steps(length: int) -> None:
    for seed in range(5):
        times = own(RANKS, 60, seed=seed)
        times[3, 20 : 20 + length] *= 2
        ((row, first, stop),) = found(times)
        assert (row, abs(first - 20) <= 1, abs(stop - 20 - length) <= 1) == (3, True, True)


def test_a_smaller_effect_must_last_longer() -> None:
    times = own(RANKS, 60)
    times[3, 20:25] *= 1.4
    assert found(times) == []
    times[3, 25:32] *= 1.4
    assert [row for row, _, _ in found(times)] == [3]


def test_one_long_step_is_no_stretch() -> None:
    times = own(RANKS, 60)
    times[3, 20] *= 40
    assert found(times) == []


def test_what_passes_within_a_second_is_no_stretch() -> None:
    times = own(RANKS, 60)
    times[3, 20:26] *= 2
    short = stragglers(times / 20, [np.arange(RANKS)], SECOND / 20, "forward", 3 * RANKS)
    assert short == []


def test_noise_that_wanders_is_no_stretch() -> None:
    wandering = [own(ranks, steps, 0.1, 0.6, seed) for ranks in (2, 4, 16)
                 for steps in (12, 24, 60) for seed in range(25)]  # fmt: skip
    assert sum(bool(found(times)) for times in wandering) <= 2


def test_it_is_named_where_only_collectives_were_recorded() -> None:
    slow = [Fault((5,), "backward-compute", 30, 38, times=2.5)]
    (verdict,) = diagnose(operators_only(slow)).verdicts
    assert (verdict.ranks, verdict.steps) == ((5,), (30, 37))


def test_it_is_named_in_a_job_of_few_steps() -> None:
    slow = [Fault((5,), "backward-compute", 9, 14, times=2.5)]
    (verdict,) = diagnose(operators_only(slow, 20)).verdicts
    assert (verdict.ranks, verdict.steps) == ((5,), (9, 13))


def test_it_is_named_if_slow_for_most_of_few_steps() -> None:
    """L2 wants twenty steps, or all."""
    slow = [Fault((5,), "backward-compute", 9, times=2.5)]
    (verdict,) = diagnose(operators_only(slow, 25)).verdicts
    assert (verdict.ranks, verdict.steps) == ((5,), (9, 24))


def test_the_same_job_without_a_fault_is_healthy() -> None:
    assert diagnose(operators_only([])).state == "healthy"
