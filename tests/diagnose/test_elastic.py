"""Elastic jobs: ranks that leave saw other steps than those that stay, which do their work."""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.run import diagnose
from stepscope.window import Window

from .jobs import Fault, a_job, without

RANKS, STEPS, LEFT, STAY = 12, 120, 60, 8


def an_elastic_job(*faults: Fault, longer: float) -> Window:
    """Four of twelve ranks leave at step 60; layers of the others take longer from then on."""
    work = Fault(tuple(range(RANKS)), "forward-compute", LEFT, times=longer)
    window = a_job(RANKS, STEPS, 0.02, faults=[work, *faults], stacks=False)
    window = without(window, "comm_ops", "hardware", "pauses")
    tables = {name: one.take((one.ints("rank") < STAY) | (one.ints("step") < LEFT))
              for name, one in window.tables.items()}  # fmt: skip
    return Window(window.job, tables)


def verdicts(window: Window) -> list[Verdict]:
    return [one for one in diagnose(window).verdicts if not one.is_suspect]


def test_those_that_stay_may_do_the_work_of_those_that_left() -> None:
    assert verdicts(an_elastic_job(longer=1.5)) == []


def test_more_than_their_work_is_another_matter() -> None:
    (found,) = verdicts(an_elastic_job(longer=3.0))
    assert (found.cause, found.ranks) == ("code", ())


def test_ranks_that_left_before_all_steps_got_longer_are_no_measure_for_a_slow_one() -> None:
    slow = Fault((2,), "forward-compute", LEFT + 5, times=1.9)
    (found,) = verdicts(an_elastic_job(slow, longer=1.5))
    assert found.ranks == (2,)
    assert np.isclose(found.slowdown or 0, 1.9, rtol=0.1)
