"""A job whose older rows are dropped: a lasting rise of its step time is still reported."""

from __future__ import annotations

from dataclasses import replace

from stepscope.diagnose.finding import Diagnosis, Verdict
from stepscope.diagnose.follow.past import MOST_STEPS, Past
from stepscope.diagnose.shown import StepSeries
from tests.report.samples import series

EVERYONE = Verdict("slowdown", "code", "all ranks spend more in collate", "profile it",
                   steps=(100, 119))  # fmt: skip


def look(first: int, last: int, slow_from: int | None = None, *verdicts: Verdict) -> Diagnosis:
    """The job with only the rows of its newest steps."""
    return Diagnosis("job", 8, "slow" if verdicts else "healthy", (first, last),
                     verdicts=verdicts, series=series(first, last, slow_from, 1.2))  # fmt: skip


def followed(past: Past, until: int, slow_from: int | None, first: int = 0) -> Diagnosis:
    """A diagnosis every ten steps, each of the newest twenty."""
    for last in range(first + 19, until, 10):
        found = past.joined(look(last - 19, last, slow_from))
    return found


def test_a_rise_is_reported_after_the_steps_before_it_are_dropped() -> None:
    past = Past()
    assert followed(past, 115, slow_from=100).state == "healthy", "ten steps may be a mood"
    found = followed(past, 400, slow_from=100, first=100)
    assert found.state == "regression"
    (window,) = found.windows
    assert window.kind == "regression" and abs(window.steps[0] - 100) <= 5
    assert found.series.steps == tuple(range(found.series.steps[-1] + 1))
    assert found.steps == (380, 399), "what was looked at now"


def test_a_healthy_job_stays_healthy() -> None:
    assert followed(Past(), 2000, slow_from=None).state == "healthy"


def test_the_cause_found_when_it_rose_is_still_reported() -> None:
    past = Past()
    followed(past, 120, slow_from=100)
    past.joined(look(100, 119, 100, EVERYONE))
    found = followed(past, 300, slow_from=100, first=110)
    assert found.verdicts == (replace(EVERYONE, steps=(100, found.series.steps[-1])),)


def test_a_slow_rank_is_blamed_by_the_kept_rows_alone() -> None:
    past = Past()
    rank = replace(EVERYONE, ranks=(3,))
    followed(past, 120, slow_from=100)
    past.joined(look(100, 119, 100, rank))
    assert followed(past, 300, slow_from=100, first=110).verdicts == ()


def test_a_rise_that_is_over_is_not_reported() -> None:
    past = Past()
    followed(past, 200, slow_from=100)
    assert followed(past, 700, slow_from=None, first=190).state == "healthy"


def test_a_restarted_job_has_no_past() -> None:
    past = Past()
    followed(past, 300, slow_from=None)
    slower = followed(past, 300, slow_from=0)
    assert slower.state == "healthy" and slower.series.steps[0] == 0


def test_a_job_with_all_its_rows_is_unchanged() -> None:
    whole = look(0, 300, 100)
    assert Past().joined(whole) is whole


def test_a_long_job_keeps_only_the_newest_step_times() -> None:
    past = Past()
    found = followed(past, MOST_STEPS + 1000, slow_from=None)
    assert len(found.series.steps) == MOST_STEPS


def test_a_hang_is_still_a_hang_and_a_job_without_steps_works() -> None:
    past = Past()
    assert past.joined(Diagnosis("job", 8, "healthy")).state == "healthy"
    followed(past, 300, slow_from=100)
    stuck = replace(look(290, 309, 100), state="hang")
    assert past.joined(stuck).state == "hang"
    assert past.joined(Diagnosis("job", 8, "hang", series=StepSeries((), ()))).state == "hang"
