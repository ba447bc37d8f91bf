"""`--explain`: every candidate with the rules that decided, as people read it (golden texts)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepscope.diagnose.run import diagnose
from stepscope.diagnose.settings import Settings
from stepscope.report.trail import render_trail
from stepscope.window import Window
from tests.report.golden import check_golden

from .fabric import a_wired_job, through
from .jobs import Fault, a_job
from .test_hang import a_stuck_job, stopped

NAPPING = Fault((2,), "forward-compute", 100, ms=60, function="nap (train.py:98)")


def slow_rank() -> Window:
    return a_job(faults=[NAPPING])


def slow_link() -> Window:
    return a_wired_job(through(5))


def hang() -> Window:
    return stopped(a_stuck_job(seconds=2.5))


CASES: dict[str, Callable[[], Window]] = {
    "healthy": a_job,
    "slow_rank": slow_rank,
    "slow_link": slow_link,
    "hang": hang,
}


@pytest.mark.parametrize("name", CASES)
def test_the_trail_of_all_candidates(name: str) -> None:
    diagnosis = diagnose(CASES[name](), Settings(explain=()))
    check_golden(f"explain.{name}.txt", render_trail(diagnosis))


def test_why_a_rank_was_not_named() -> None:
    diagnosis = diagnose(slow_rank(), Settings(explain=(1,)))
    assert [one.ranks for one in diagnosis.candidates] == [(2,), (2,), (1,)]
    text = render_trail(diagnosis, 1)
    heading = "What was considered of rank 1: 0 named, 1 not named"
    assert text.startswith(f"{heading}\n\nrank 1: not named")
    check_golden("explain.rank_1.txt", text)


def test_an_unknown_rank_is_said_to_be_unknown() -> None:
    text = render_trail(diagnose(slow_rank(), Settings(explain=(77,))), 77)
    assert "nothing was recorded for rank 77" in text
