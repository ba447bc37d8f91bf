"""Two faults in one job, one after the other or at once: neither hides the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.diagnose.decide.everyone import beyond
from stepscope.diagnose.finding import Finding, Regression, Slowdown, Waste
from stepscope.diagnose.run import diagnose
from stepscope.diagnose.suspect import Suspect

from .jobs import Fault, a_job

ALL = (0, 1, 2, 3)


def test_who_is_slow_when_a_rise_is_over_takes_no_turn_in_it() -> None:
    """Loading slows all down for a while; then one rank is slow in every second step."""
    loading = Fault(ALL, "data-load", 60, 130, ms=40)
    late = Fault((2,), "forward-compute", 135, ms=100, every=2)
    found = diagnose(a_job(faults=[loading, late], stacks=False)).verdicts
    assert {(one.ranks, one.cause) for one in found} == {((2,), "compute"), ((), "data_loading")}


def test_a_rise_that_is_explained_by_what_ended_gives_back_who_was_slow_later() -> None:
    rise = Regression("regression", "unknown", "", steps=(100, 199), split=100)
    suspect = Suspect(2, "forward-compute", ("forward-compute",), 130, 199, 1, 9, 3, 1e6, 1.2, 1)
    later = Slowdown("transient", "host", "", (2,), steps=(130, 198), suspect=suspect)
    during = replace(later, steps=(100, 129))
    by = Waste("shared-loading", "data_loading", "", steps=(100, 129))
    turns: list[tuple[Regression, Finding]] = [(rise, later), (rise, during)]
    assert beyond(turns, [rise], by) == [later]
    assert beyond(turns, [replace(rise)], by) == [], "of another rise"


@pytest.mark.parametrize(("steps", "one", "all_ranks"), [
    (200, Fault((2,), "optimizer", 100, ms=70), (100, 200, 25)),
    (200, Fault((2,), None, 40, 110, times=2.0), (100, 180, 70)),
    (120, Fault((2,), "optimizer", 70, 114, ms=40), (38, 67, 15)),
], ids=["at once", "one first, and slow in some steps of the rise", "one later"])  # fmt: skip
def test_all_ranks_work_longer_beside_one_that_is_slow(
    steps: int, one: Fault, all_ranks: tuple[int, int, float]
) -> None:
    """What the median rank itself does longer is no effect of a culprit, however much it costs."""
    first, stop, ms = all_ranks
    faults = [one, Fault(ALL, "forward-compute", first, stop, ms=ms)]
    found = diagnose(a_job(steps=steps, faults=faults, stacks=False)).verdicts
    assert sorted((each.ranks, each.cause) for each in found) == [((), "code"), ((2,), "compute")]


def test_loading_of_all_ranks_and_then_of_one_takes_no_turns() -> None:
    faults = [Fault(ALL, "data-load", 31, 65, ms=15), Fault((3,), "data-load", 68, 114, ms=25)]
    found = diagnose(a_job(steps=120, noise=0.03, seed=6, faults=faults, stacks=False)).verdicts
    assert {verdict.ranks: verdict.cause for verdict in found} == {
        (3,): "data_loading", (): "data_loading"}  # fmt: skip


def test_two_ranks_that_are_slow_one_after_the_other_are_both_named() -> None:
    """The first for less than thirty steps, by a quarter."""
    faults = [Fault((2,), None, 31, 57, times=1.25), Fault((0,), None, 60, times=1.25)]
    found = diagnose(a_job(steps=120, noise=0.01, faults=faults, stacks=False)).verdicts
    assert {verdict.ranks for verdict in found} == {(0,), (2,)}


@pytest.mark.parametrize("times", [1.3, 1.6])
def test_a_rank_was_slow_before_all_ranks_became_slow_for_good(times: float) -> None:
    """What it cost is the rise above the steps before it: those after it are longer yet."""
    one = Fault((2,), "backward-compute", 16, 80, times=times)
    later = Fault(ALL, "forward-compute", 80, ms=60)
    found = diagnose(a_job(steps=120, faults=[one, later], stacks=False)).verdicts
    assert {verdict.ranks: verdict.cause for verdict in found} == {(2,): "compute", (): "code"}
    slow = next(verdict for verdict in found if verdict.ranks)
    assert slow.lost_fraction == pytest.approx(1 - 86 / (86 + 50 * (times - 1)), abs=0.04)
