"""Which jobs a suite is made of."""

from __future__ import annotations

import pytest

from stepscope.errors import UsageError
from stepscope.evaluate import SUITES, choose
from stepscope.evaluate.suites import AFTER, HEALTHY, TWO, layout
from stepscope.simulate import FAULTS
from stepscope.simulate.scenario import Scenario


@pytest.mark.parametrize("name", ["smoke", "standard"])
def test_every_fault_there_is_has_a_job(name: str) -> None:
    chosen = choose(SUITES[name], range(1))
    assert {case.row.split()[0] for case in chosen.cases} >= set(FAULTS)
    assert not chosen.unfit
    assert {HEALTHY, TWO, AFTER} <= {case.row for case in chosen.cases}


def test_equal_seeds_give_equal_jobs() -> None:
    one, other = (choose(SUITES["smoke"], range(2), ["gpu"]) for _ in range(2))
    assert one == other
    assert len({case.id for case in one.cases}) == len(one.cases)


def test_sizes_and_layouts_take_turns() -> None:
    cases = choose(SUITES["standard"], range(5), ["gpu_slow"]).cases
    assert {case.scenario.ranks for case in cases} == {64, 128, 256, 512}
    assert {case.dimensions for case in cases} == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("dimensions", range(1, 6))
def test_a_layout_has_as_many_dimensions_as_it_says(dimensions: int) -> None:
    parts = layout(64, dimensions)
    dp = 64 // (parts.tp * parts.pp * parts.cp)
    sizes = (dp, parts.tp, parts.pp, parts.ep, parts.cp)
    assert sum(size > 1 for size in sizes) == dimensions


def test_a_hang_after_a_slowdown_comes_after_it() -> None:
    (case,) = choose(SUITES["smoke"], range(1), [AFTER]).cases
    slow, hang = case.scenario.faults
    assert slow.onset < hang.onset < case.scenario.steps


def test_healthy_jobs_have_no_faults() -> None:
    cases = choose(SUITES["smoke"], range(1), [HEALTHY]).cases
    assert all(case.scenario.faults == Scenario().faults for case in cases)


def test_an_unknown_fault_is_named_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="no fault is called gpu_hot; there are healthy, gpu_slow"):
        choose(SUITES["smoke"], range(1), ["gpu_hot"])
