"""Is a job slower than it was, does it stand still? By the steps of the ranks on one host."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.processor.state.pace import SILENT_SECONDS, SOON, Pace
from stepscope.processor.state.steps import Step

SECOND = 1_000_000_000


class Job:
    """Ranks that finish steps together."""

    def __init__(self, ranks: int = 3) -> None:
        self.pace = Pace()
        self.ranks = ranks
        self.step = 0
        self.now_ns = 0
        self.noise = np.random.default_rng(0)

    def run(self, steps: int, step_s: float = 1.0) -> int | None:
        """The step after which it is called slower, if it is."""
        for _ in range(steps):
            self.now_ns += round(step_s * float(np.exp(self.noise.normal(0, 0.02))) * SECOND)
            done = [Step(self.step, self.now_ns - SECOND // 2, SECOND // 2)]
            found = [self.pace.add(rank, 0, done) for rank in range(self.ranks)]
            self.step += 1
            if any(one is not None for one in found):
                return self.step - 1
        return None


def test_time_between_steps_counts() -> None:
    """The steps themselves take half a second all the time."""
    job = Job()
    assert job.run(200) is None
    found = job.run(50, 1.5)
    assert found is not None and found < 215


def test_a_rise_in_the_middle_of_a_packet_is_found() -> None:
    """Short steps arrive many at once, and no unit of ten ends with a packet."""
    pace = Pace()
    ends_ns = np.cumsum(np.where(np.arange(900) < 700, 50, 100)) * 1_000_000
    steps = [Step(at, int(end), 0) for at, end in enumerate(ends_ns)]
    pace.add(0, 0, steps[:5])
    found = [pace.add(0, 0, steps[at : at + 10]) for at in range(5, 900, 10)]
    assert any(one is not None for one in found)


def test_a_rank_that_left_is_not_waited_for() -> None:
    job = Job(ranks=3)
    assert job.run(200) is None
    job.ranks = 2
    job.pace.leave(2)
    assert job.run(50, 1.5) is not None


def test_a_rank_that_is_silent_delays_but_does_not_blind() -> None:
    job = Job(ranks=3)
    assert job.run(200) is None
    job.ranks = 2
    assert job.run(200, 1.5) is not None


def test_profiled_steps_say_nothing() -> None:
    job = Job()
    assert job.run(200) is None
    job.pace.leave_out(200, 219)
    assert job.run(25, 3.0) is None
    assert job.run(200) is None


def test_where_a_job_is() -> None:
    job = Job()
    assert job.pace.now is None
    job.run(100)
    assert job.run(20, 2.0) is not None
    for _ in range(12):
        job.run(1, 2.0)
    now = job.pace.now
    assert now is not None and (now.step, now.ended_ns) == (job.step - 1, job.now_ns)
    assert now.step_s == pytest.approx(SOON * 2.0, rel=0.1), "it may become faster again"
    assert now.slow_step_s == pytest.approx(2.0, rel=0.1)


def test_a_pause_hardly_changes_how_long_steps_take() -> None:
    job = Job()
    job.run(100)
    job.run(1, 300.0)
    now = job.pace.now
    assert now is not None and now.slow_step_s < 1.3


def test_patience_grows_with_the_pauses_of_a_job() -> None:
    job = Job()
    job.run(50)
    assert job.pace.patience_s(average_s=1.0) == SILENT_SECONDS
    assert job.pace.patience_s(average_s=60.0) == 300.0, "EROICA: five iterations"
    job.run(1, 120.0)
    assert job.pace.patience_s(average_s=1.0) == pytest.approx(240.0, rel=0.1)
