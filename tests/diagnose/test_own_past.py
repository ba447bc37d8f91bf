"""What one rank alone does is compared with its own past, also if it was slow for a while only."""

from __future__ import annotations

import pytest

from stepscope.diagnose.detect.regression.own_past import OwnPast
from stepscope.diagnose.finding import Slowdown
from stepscope.diagnose.method import SoFar
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.clean import clean
from stepscope.window import Window
from tests.diagnose.jobs import Fault, a_job


@pytest.mark.parametrize("until", [200, 130])
def test_a_rank_that_alone_loads_and_does_so_slowly(until: int) -> None:
    (found,) = by_its_past(Fault((0,), "data-load", 70, until, ms=40.0))
    assert found.ranks == (0,)
    assert found.suspect is not None and found.suspect.phase == "data-load"
    assert abs(found.suspect.first - 70) <= 5 and abs(found.suspect.stop - until) <= 5


def test_a_rank_that_is_never_slow_has_the_past_that_it_had() -> None:
    assert by_its_past(Fault((0,), "data-load", 70, 71, ms=40.0)) == []


def by_its_past(fault: Fault) -> list[Slowdown]:
    window = a_job(faults=[fault], stacks=False)
    phases = window.tables["phases"]
    others = phases.strings("phase").equals("data-load") & (phases.ints("rank") > 0)
    window = Window(window.job, {**window.tables, "phases": phases.take(~others)})
    return [*OwnPast().detect(Observed(clean(window)[0]), SoFar())]
