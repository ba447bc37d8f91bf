"""Which jobs a suite is made of."""

from __future__ import annotations

from collections import Counter

import pytest

from stepscope.errors import UsageError
from stepscope.evaluate import SUITES, choose
from stepscope.evaluate.argus import KINDS, TABLE_6
from stepscope.evaluate.draw import all_forms, shuffled
from stepscope.evaluate.drawn import AFTER, TWO
from stepscope.evaluate.layouts import STRATEGIES, layout, strategy_of
from stepscope.evaluate.suite import HEALTHY
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


def test_one_seed_of_the_large_suite_has_all_its_sizes() -> None:
    """And, of what takes twice as long, half as many."""
    sizes = Counter(case.scenario.ranks for case in choose(SUITES["large"], range(1)).cases)
    assert set(sizes) == {2048, 4096, 8192, 10240}
    assert sizes[2048] > sizes[4096] >= max(sizes[8192], sizes[10240])


def test_a_size_is_seen_with_several_layouts_and_ways() -> None:
    cases = choose(SUITES["standard"], range(1)).cases
    small = [case for case in cases if case.scenario.ranks == 64 and case.row != HEALTHY]
    assert {case.dimensions for case in small} == {1, 2, 3, 4, 5}
    assert {strategy_of(case.scenario) for case in small} == set(STRATEGIES)


@pytest.mark.parametrize("name", ["smoke", "standard", "large"])
def test_healthy_jobs_work_together_in_every_way(name: str) -> None:
    cases = choose(SUITES[name], range(SUITES[name].seeds), [HEALTHY]).cases
    assert {strategy_of(case.scenario) for case in cases} == set(STRATEGIES)


def test_a_pipeline_of_chunks_has_as_much_work_as_one_without() -> None:
    cases = choose(SUITES["smoke"], range(1), [HEALTHY]).cases
    work = {case.scenario.workload.blocks * case.scenario.parallelism.chunks for case in cases}
    assert work == {2}


def test_a_new_fault_changes_no_other_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take its turn in rows of several forms, and be one of two."""
    kept = [name for name in FAULTS if name not in ("nic_slow", "gc")]
    before = choose(SUITES["smoke"], range(1)).cases
    monkeypatch.setattr("stepscope.evaluate.draw.FAULTS", {name: FAULTS[name] for name in kept})
    after = choose(SUITES["smoke"], range(1)).cases
    assert len(after) < len(before)
    assert set(after) < set(before)


def test_a_new_host_changes_what_is_drawn_only_where_it_is_drawn_itself() -> None:
    for row in range(20):
        few, more = (shuffled(range(hosts), ("row", row)) for hosts in (8, 9))
        assert [host for host in more if host < 8] == few


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
    with pytest.raises(UsageError, match="unknown fault gpu_hot; known: healthy, gpu_slow"):
        choose(SUITES["smoke"], range(1), ["gpu_hot"])


def test_argus_is_retold_at_each_of_its_sizes() -> None:
    cases = choose(SUITES["argus"], range(1)).cases
    for size in (64, 512, 4096):
        rows = [case.row for case in cases if case.nominal == size]
        assert set(rows) >= {form.name for form in all_forms() if TABLE_6 in form.family}
        assert {row[:6] for row in rows} >= {f"case {number}" for number in range(1, 6)}
        assert {f"{HEALTHY} {kind}" for kind in KINDS} <= set(rows)


def test_a_part_of_a_suite_is_chosen_by_size() -> None:
    case = "case 5"  # nine stages: there are none of exactly this size
    (only,) = choose(SUITES["argus"], range(1), [case], [512]).cases
    assert (only.nominal, only.scenario.ranks) == (512, 576)
    with pytest.raises(UsageError, match="no such job of argus has 65 ranks; sizes: 64, 512,"):
        choose(SUITES["argus"], range(1), [case], [65])


def test_healthy_jobs_of_argus_are_all_of_their_kind() -> None:
    found = {row: choose(SUITES["argus"], range(1), [f"{HEALTHY} {row}"]).cases for row in KINDS}
    kinds = {row: {case.scenario.workload.kind for case in cases} for row, cases in found.items()}
    assert (kinds["dense"], kinds["experts"]) == ({"dense"}, {"moe"})
    assert kinds["inputs"] == {"variable"}
    assert {case.scenario.noise for case in found["clocks"]} != {Scenario().noise}
