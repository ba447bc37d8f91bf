"""Whether a job's step times are steady."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.diagnose.follow.pulse import is_steady, newest_step, step_ns
from stepscope.trace import Job
from stepscope.window import Table, Window

MS = 1_000_000


def job(*periods_ms: int) -> Window:
    """Steps of two ranks, one after the other."""
    start = np.concatenate(([0], np.cumsum(periods_ms)))[:-1] * MS
    steps = np.arange(len(start))
    columns = {
        "rank": np.repeat([0, 1], len(start)),
        "step": np.tile(steps, 2),
        "start_ns": np.tile(start, 2),
        "duration_ns": np.tile(periods_ms, 2) * MS,
    }
    return Window(Job("job", 2), {"steps": Table(columns)})


def test_steps_like_those_before_are_steady() -> None:
    window = job(*[1000, 1005, 998, 1002] * 6)
    assert is_steady(window)
    assert newest_step(window) == 23
    assert step_ns(window) == pytest.approx(1.0e9, rel=0.01)


@pytest.mark.parametrize("then", [(1100,) * 6, (900,) * 6, (1000, 1000, 1000, 2000, 1000)])
def test_slower_faster_and_odd_steps_are_not(then: tuple[int, ...]) -> None:
    assert not is_steady(job(*[1000] * 18, *then, 1000))


def test_a_change_is_steady_again_when_it_is_old() -> None:
    assert is_steady(job(*[1000] * 4, *[1100] * 20))


def test_few_or_no_steps_are_not_steady() -> None:
    assert not is_steady(job(*[1000] * 10))
    nothing = Window(Job("job", 2), {})
    assert not is_steady(nothing) and newest_step(nothing) is None
