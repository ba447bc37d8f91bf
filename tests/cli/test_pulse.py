"""Who follows a large job looks at all of it when its step times change, or stop coming."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from stepscope.cli import follow
from stepscope.cli.follow import Pulse, Watch, changes
from stepscope.store import JobWriter, Location
from stepscope.trace import Job

SECOND_NS = 1_000_000_000


class Running:
    """A job of two ranks in a folder, and the clock of who follows it."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.source = str(folder)
        self._writer = JobWriter(Location.parse(self.source), "host-0")
        self._writer.write_job(Job("job", 2))
        self._step, self._start_ns = 0, 0

    def clock(self) -> float:
        return self.now

    def run(self, *seconds: float) -> None:
        """Steps that take so long each."""
        for one in seconds:
            self._writer.append("steps", self._rows(int(one * SECOND_NS)))
            self._step, self._start_ns = self._step + 1, self._start_ns + int(one * SECOND_NS)
            self.now += one
        self._writer.flush()

    def _rows(self, duration_ns: int) -> dict[str, Sequence[int]]:
        return {"rank": [0, 1], "step": [self._step] * 2, "start_ns": [self._start_ns] * 2,
                "duration_ns": [duration_ns] * 2}  # fmt: skip


@pytest.fixture
def job(tmp_path: Path) -> Running:
    return Running(tmp_path / "job")


def test_a_job_is_steady_until_its_steps_take_longer(job: Running) -> None:
    pulse = Pulse(job.source, job.clock)
    job.run(*[1.0] * 20)
    assert pulse.is_steady()
    job.run(*[1.0] * 5)
    assert pulse.is_steady()
    job.run(*[1.2] * 6)
    assert not pulse.is_steady()


def test_steps_that_stop_coming_are_noticed(job: Running) -> None:
    pulse = Pulse(job.source, job.clock)
    job.run(*[1.0] * 20)
    assert pulse.is_steady()
    job.now += follow.LATE_SECONDS - 1
    assert pulse.is_steady()
    job.now += 2
    assert not pulse.is_steady()


def test_of_large_jobs_looks_wait_and_of_small_ones_they_do_not(
    job: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.run(*[1.0] * 20)
    watch = Watch(job.source)
    watch.look()
    assert not watch.may_skip(), "it cost next to nothing"
    monkeypatch.setattr(follow, "EXPENSIVE_SECONDS", 0.0)
    assert watch.may_skip()
    monkeypatch.setattr(follow, "MAX_SKIP_SECONDS", -1.0)
    assert not watch.may_skip(), "now and then all is looked at"


def test_a_diagnosis_runs_when_it_may_not_be_skipped(
    job: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "EXPENSIVE_SECONDS", 0.0)
    job.run(*[1.0] * 20)
    watch = Watch(job.source)
    first = watch.look()
    pauses = iter(((1.0,) * 3, (1.0,) * 3, (1.5,) * 6))

    def sleep(_seconds: float) -> None:
        job.run(*next(pauses))

    found = next(changes(watch, 5.0, first, sleep))
    assert found.steps == (0, 31), "not before the slower steps"


def test_the_clock_is_monotonic(job: Running) -> None:
    job.run(1.0)
    assert Pulse(job.source)._clock is time.monotonic
