"""From cases to results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.evaluate import Case, Result, choose, run
from stepscope.evaluate.runner import memory_of, moment_of
from stepscope.evaluate.suites import LARGE, SMOKE

SMALL = replace(SMOKE, steps=24, onset=12, healthy=1)


def cases(*families: str) -> tuple[Case, ...]:
    return choose(SMALL, range(1), families).cases


def untimed(results: list[Result]) -> list[Result]:
    return [replace(one, computing_s=0.0) for one in results]


def test_several_processes_give_the_same_results_in_the_same_order() -> None:
    some = cases("healthy", "stuck_loader")
    seen: list[tuple[int, int]] = []
    alone = run(some, fast=True, jobs=1, progress=lambda done, all: seen.append((done, all)))
    assert untimed(run(some, fast=True, jobs=2)) == untimed(alone)
    assert [one.id for one in alone] == [one.id for one in some]
    assert seen == [(1, 2), (2, 2)]


def test_a_result_says_what_was_wrong_and_what_was_said() -> None:
    (result,) = run(cases("stuck_loader"), fast=True, jobs=1)
    assert result.fault.startswith("stuck_loader at ")
    assert result.score.hangs and result.state == "hang"
    assert [one.kind for one in result.said] == ["hang"]


def broken(*_: object) -> None:
    raise ValueError("no such\nrank")


def test_a_diagnosis_that_gives_up_has_found_nothing_and_ends_no_other_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stepscope.evaluate.runner.diagnose", broken)
    healthy, stuck = run(cases("healthy", "stuck_loader"), fast=True, jobs=1)
    assert healthy.failed.startswith("ValueError: no such rank (test_runner.py:")
    assert (stuck.score.found, stuck.score.hangs, stuck.score.found_hang) == (False, True, False)


def test_a_job_that_cannot_even_be_played_counts_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stepscope.evaluate.runner.simulate", broken)
    (one,) = run(cases("stuck_loader"), fast=True, jobs=1)
    assert one.failed and not one.score.costly and one.score.found is None


def test_an_interrupt_keeps_what_is_done() -> None:
    def interrupt(done: int, all: int) -> None:
        raise KeyboardInterrupt

    (one,) = run(cases("healthy", "stuck_loader"), fast=True, jobs=1, progress=interrupt)
    assert one.row in ("healthy", "stuck_loader")


def test_larger_jobs_need_more_memory() -> None:
    small, large = (choose(suite, range(1), ["gpu_slow"]).cases[0]
                    for suite in (SMOKE, LARGE))  # fmt: skip
    assert memory_of(small, fast=True) < memory_of(small, fast=False) < memory_of(large, fast=True)


@pytest.mark.parametrize(
    ("steps", "moment"),
    [(1, 300), (2, 400), (3, 500), (10, 1200)],
)
def test_looks_are_taken_at_ends_of_steps_and_go_on_where_those_end(
    steps: int, moment: int
) -> None:
    """The fault comes in step 2; steps last 100, and the job hangs after step 3."""
    assert moment_of({0: 100, 1: 200, 2: 300, 3: 400}, 2, steps) == moment


def test_there_is_no_look_where_no_step_came_before_the_fault() -> None:
    assert moment_of({}, 2, 1) is None
    assert moment_of({0: 100}, 5, 1) is None
