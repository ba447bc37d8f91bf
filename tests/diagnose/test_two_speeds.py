"""Ranks of two speeds: the slow ones hold up the fast ones, however many they are."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.numeric.two_speeds import above_fast, slow_side
from stepscope.diagnose.run import diagnose
from stepscope.window import Floats, Ints

from .jobs import Fault, a_job
from .traces import profiled

ALARMS = 0.01


def levels(ranks: int, slow: list[int], times: float, spread: float = 0.01) -> Floats:
    found = spread * np.random.default_rng(ranks).normal(size=ranks)
    found[slow] += np.log(times)
    return found


def slow_rows(of: Floats, *groups: Ints, hosts: tuple[Ints, ...] = ()) -> list[int]:
    found = slow_side(of, groups or (np.arange(of.size),), hosts, ALARMS)
    return np.flatnonzero(found).tolist()


@pytest.mark.parametrize("slow", [[4, 5, 6, 7], [1, 2, 6], [0, 1, 2, 3, 4]])
def test_the_slow_ones_of_eight(slow: list[int]) -> None:
    assert slow_rows(levels(8, slow, 1.3)) == slow


def test_few_fast_ones_may_have_less_to_do() -> None:
    assert slow_rows(levels(8, [0, 1, 2, 3, 4, 5], 1.3)) == []


def test_healthy_ranks_have_one_speed() -> None:
    random = np.random.default_rng(0)
    found = [
        slow_rows(0.05 * random.normal(size=ranks)) for ranks in (4, 8, 16) for _ in range(300)
    ]
    assert sum(map(bool, found)) <= ALARMS * len(found)


def test_a_host_is_one_of_few_ways_to_divide_the_ranks() -> None:
    hosts = (np.arange(4), np.arange(4, 8))
    of = np.array([0.31, 0.26, 0.39, 0.24, 0.0, 0.06, -0.06, 0.0])
    assert slow_rows(of) == []
    assert slow_rows(of, hosts=hosts) == [0, 1, 2, 3]


def test_replicas_in_pairs() -> None:
    """Every pair differs by as much: one replica is slow."""
    pairs = [np.array([rank, rank + 4]) for rank in range(4)]
    assert slow_rows(levels(8, [4, 5, 6, 7], 1.3), *pairs) == [4, 5, 6, 7]
    assert slow_rows(levels(8, [4, 1, 6, 3], 1.02), *pairs) == []


def test_all_are_compared_with_the_fast_ones() -> None:
    values, slow = np.array([[1.0], [1.2], [5.0], [5.0], [5.2]]), np.arange(5) > 1
    above = above_fast(values, [np.arange(5)], slow)[:, 0]
    assert above == pytest.approx([-0.2, 0.2, 3.9, 3.9, 4.1])


@pytest.mark.parametrize("slow", [(0, 3), (1, 2)])
def test_half_of_the_ranks_in_a_trace_are_one_verdict(slow: tuple[int, ...]) -> None:
    fault = Fault(slow, "backward-compute", 0, times=1.6)
    found = diagnose(profiled(a_job(4, 5, 0.01, faults=[fault], stacks=False)))
    (verdict,) = found.verdicts
    assert (verdict.ranks, verdict.cause, found.state) == (slow, "compute", "slow")


def test_more_than_half_as_well() -> None:
    fault = Fault((0, 1, 2, 5, 6), "backward-compute", 0, times=1.6)
    (verdict,) = diagnose(profiled(a_job(8, 5, 0.02, faults=[fault], stacks=False))).verdicts
    assert verdict.ranks == fault.ranks
