"""Where only calls were recorded, members of a group that wait for a slow one seem slow with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.diagnose.decide.unseen import as_suspects_of_calls
from stepscope.diagnose.finding import Slowdown
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import LEAST_SCORE
from stepscope.trace import ProcessGroup

from .jobs import a_job


@pytest.mark.parametrize(
    ("slow", "suspected"), [((1, 2, 3), True), ((0, 1, 2, 3), True), ((1, 2), False), ((6,), False)]
)
def test_most_members_of_a_group_together_are_suspects(
    slow: tuple[int, ...], suspected: bool
) -> None:
    window = a_job(8, steps=40)
    groups = (ProcessGroup("cp-0", "cp", (0, 1, 2, 3)), ProcessGroup("cp-1", "cp", (4, 5, 6, 7)))
    job = Observed(replace(window, job=replace(window.job, groups=groups)))
    found = Slowdown("argus-l2", "unknown", "", slow, lost_fraction=0.2, score=0.9)
    (weighed,) = as_suspects_of_calls(job, [found])
    assert (weighed.score < LEAST_SCORE) == suspected
