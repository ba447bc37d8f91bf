"""Few pauses, each far longer than any other rank's, and whose duty pauses are."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.detect.ranks.long_stalls import by_regularity, chance
from stepscope.diagnose.detect.ranks.transient import Series, spiking_ranks
from stepscope.diagnose.detect.steps.duties import habits
from stepscope.diagnose.run import diagnose

from .jobs import Fault, a_job

LIMIT = 1e-5
"""What is left of one false alarm in a thousand jobs after a hundred tests."""
HOSTS = [np.array([0, 1]), np.array([2, 3]), np.array([4, 5])]


@pytest.mark.parametrize(
    ("own", "others", "says"),
    [
        pytest.param([1.2, 1.3, 1.2, 1.3], [0.3, 0.2], "fault", id="four of a second"),
        pytest.param([0.7] * 6, [0.3, 0.2], "fault", id="six of less"),
        pytest.param([9.0], [0.3], "chance", id="a single one"),
        pytest.param([1.2, 1.3, 1.2], [1.0, 0.2], "chance", id="another has one like it"),
        pytest.param([0.3] * 9, [0.01], "chance", id="what any process has"),
    ],
)
def test_how_long_pauses_are_weighs(own: list[float], others: list[float], says: str) -> None:
    likely = chance(1e9 * np.array(own), 1e9 * np.array(others), ranks=8)
    assert (likely < LIMIT) == (says == "fault")


@pytest.mark.parametrize(
    ("steps", "likely"),
    [
        pytest.param([67, 92, 117], 1 / 25, id="every 25 steps: the third could come in any of 25"),
        pytest.param([67, 92, 117, 142], 1 / 625, id="the fourth, too"),
        pytest.param([67, 91, 116], 2 / 24.5, id="or one later or earlier"),
        pytest.param([67, 92], 1.0, id="two have any distance"),
        pytest.param([5, 100, 115], 1.0, id="at distances of any kind"),
    ],
)
def test_pauses_that_come_back_at_equal_distances_are_no_chance(
    steps: list[int], likely: float
) -> None:
    assert by_regularity(np.array(steps)) == pytest.approx(likely)


@pytest.mark.parametrize(
    ("rows", "every", "excused"),
    [
        pytest.param([0], 20, True, id="the first rank saves"),
        pytest.param([0], 16, True, id="at powers of two"),
        pytest.param([0], 12, False, id="nor at dozens, if nobody knows how long"),
        pytest.param([0], 17, False, id="but not at odd intervals"),
        pytest.param([2], 20, False, id="another rank has no such duty"),
        pytest.param([0, 2, 4], 17, True, id="but one of each host may"),
        pytest.param([2, 3], 20, False, id="nor has one host"),
    ],
)
def test_a_schedule_excuses_those_on_duty(rows: list[int], every: int, excused: bool) -> None:
    hit = np.zeros((6, 100), np.bool_)
    hit[rows, ::every] = True
    found = habits(np.arange(100), hit, HOSTS)[rows, :][:, ::every]
    assert bool(found.all()) == excused


@pytest.mark.parametrize(("each", "excused"), [(0.01, True), (0.02, False)])
def test_a_short_duty_of_the_first_rank_may_come_every_dozen_steps(
    each: float, excused: bool
) -> None:
    hit = np.zeros((6, 100), np.bool_)
    hit[0, ::12] = True
    found = habits(np.arange(100), hit, HOSTS, np.where(hit, each, 0.0))
    assert bool(found[0, ::12].all()) is excused


def test_in_a_phase_named_for_it_the_first_rank_saves_when_it_likes() -> None:
    hit = np.zeros((6, 100), np.bool_)
    hit[0, [3, 20, 50, 91]] = hit[2, [3, 20, 50, 91]] = True
    found = habits(np.arange(100), hit, HOSTS, named=True)
    assert found[0, [3, 20, 50, 91]].all()
    assert not habits(np.arange(100), hit, HOSTS).any()


def test_a_rank_that_stands_still_every_so_many_steps() -> None:
    """Its stalls cost a tenth of the time; the others wait for it in the next step."""
    stalls = Fault((2,), "optimizer", 0, ms=1200, every=40, computes=False)
    (verdict,) = diagnose(a_job(ranks=8, noise=0.1, faults=[stalls])).verdicts
    assert verdict.ranks == (2,)
    assert verdict.lost_fraction is not None and verdict.lost_fraction > 0.1


@pytest.mark.parametrize("rows", [[4], [4, 5]])
def test_whoever_stands_still_a_few_times_for_long_is_found_alone_or_as_a_host(
    rows: list[int],
) -> None:
    """In one of hundreds of phases and ranks that are tested, so that counting shows nothing."""
    own = np.random.default_rng(1).normal(0.5e9, 5e6, (6, 100))
    for step in (23, 47, 66, 81):
        own[rows, step] += 1.3e9
    steps = np.arange(100)
    series = Series(own, [np.arange(6)], steps, steps * 10**9, 1e9)
    found = spiking_ranks(series, HOSTS, tests=1200, lonely=False)
    assert [one.row for one in found] == rows
