"""A stalled job is sampled at every tick at first, and once a second after a while."""

from __future__ import annotations

from stepscope.processor.instructions import Stalled
from stepscope.processor.state.stalls import Stalls

JOB = Stalled("job", {"host-0": 3})


def looks(stalls: Stalls, start: float, end: float, tick: float = 0.05) -> int:
    ticks = round((end - start) / tick)
    return sum(len(stalls.due([JOB], start + number * tick)) for number in range(ticks))


def test_looks_become_rarer() -> None:
    stalls = Stalls()
    assert looks(stalls, 0, 1) == 20
    assert looks(stalls, 1, 20) < 120
    assert 58 <= looks(stalls, 20, 80) <= 62


def test_a_job_that_got_on_is_new_when_it_stalls_again() -> None:
    stalls = Stalls()
    looks(stalls, 0, 60)
    assert stalls.due([], 60.0) == []
    assert looks(stalls, 60.05, 61.05) == 20


def test_jobs_stall_apart() -> None:
    stalls = Stalls()
    looks(stalls, 0, 60)
    other = Stalled("other", {"host-0": 1})
    assert other in stalls.due([JOB, other], 60.01)
