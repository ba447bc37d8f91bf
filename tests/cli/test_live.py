"""When the live view looks, and how soon it tells of a hang: clock, command and job are fakes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli import live
from stepscope.diagnose.finding import Diagnosis
from stepscope.errors import SourceError
from tests.report.samples import SAMPLES

LOOK_CPU = 0.02


class Clock:
    """Stands in for `time`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.used = 0.0

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.used

    def time_ns(self) -> int:
        return int(self.now * 1e9)

    def wait(self, _process: object, _descriptors: object, seconds: float) -> set[int]:
        """Stands in for `wait_for`: nothing happens."""
        self.now += seconds
        return set()


class Command:
    """Runs for ever."""

    def poll(self) -> None:
        return None


class Job:
    """What the live view follows: nothing, then a healthy job or one that hangs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.exists = True
        self.stuck = self.stopped = False
        self.look_seconds = self.look_cpu = LOOK_CPU
        self.looks: list[float] = []

    def watch(self, _source: str, _history: object = None, topology: object = None) -> Job:
        return self

    def look(self) -> Diagnosis:
        self.looks.append(self._clock.now)
        self._clock.now += self.look_seconds
        self._clock.used += self.look_cpu
        if not self.exists:
            raise SourceError("nothing was recorded there yet")
        return _hang() if self.stuck else SAMPLES["healthy"]()

    def hang(self) -> Diagnosis | None:
        if not self.exists:
            raise SourceError("nothing was recorded there yet")
        return self.at_once() if self.stuck else None

    def at_once(self) -> Diagnosis:
        """What a quick look makes of it: as sure as it is of a stopped process, or not."""
        hang = _hang()
        sure = replace(hang.verdicts[0], confidence=0.97 if self.stopped else 0.7)
        return replace(hang, verdicts=(sure,))


def _hang() -> Diagnosis:
    """In a step that is complete once the job goes on."""
    hang = SAMPLES["hang"]()
    return replace(hang, verdicts=(replace(hang.verdicts[0], steps=(1200, 1200)),))


class Run:
    """A command that is watched for as long as a test wants."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.job, self.folder = Job(clock), folder
        self._clock = clock
        self._view = live.Live(str(folder.parent), folder.name, lambda: None)
        self._command: Any = Command()

    def watch(self, seconds: float) -> None:
        until = self._clock.now + seconds
        while self._clock.now < until:
            self._view.wait(self._command)

    def report(self) -> None:
        self._view.report(None)

    def stall(self) -> None:
        """The processor tells of operators that are in flight for long."""
        operators = self.folder / "comm_ops" / "recorder=host-0"
        operators.mkdir(parents=True)
        (operators / "open.parquet").touch()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    clock = Clock()
    run = Run(tmp_path / "job", clock)
    monkeypatch.setattr(live, "time", clock)
    monkeypatch.setattr(live, "wait_for", clock.wait)
    monkeypatch.setattr(live, "Watch", run.job.watch)
    return run


def test_a_hang_is_reported_between_two_diagnoses(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.job.look_cpu = run.job.look_seconds = 1.0
    run.watch(10)
    run.stall()
    run.job.stuck = True
    run.watch(1)
    assert "rank 3 never entered" in capsys.readouterr().err
    assert len(run.job.looks) == 2, "long before its turn"


def test_a_stopped_process_is_reported_without_a_full_diagnosis(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.job.look_cpu = run.job.look_seconds = 1.0
    run.watch(10)
    run.stall()
    run.job.stuck = run.job.stopped = True
    run.watch(10)
    assert capsys.readouterr().err.count("rank 3 never entered") == 1
    assert len(run.job.looks) == 1, "a whole look has time"


def test_a_hang_that_ends_is_said_to_be_over(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever read that the rank hangs learns that it goes on, and how long it took."""
    run.job.look_cpu = run.job.look_seconds = 1.0
    run.watch(10)
    run.stall()
    run.job.stuck = run.job.stopped = True
    run.watch(10)
    run.job.stuck = False
    run.watch(200)
    told = capsys.readouterr().err
    assert told.count("goes on after 1.22 s in step 1200") == 1


def test_a_hang_is_reported_though_no_diagnosis_found_a_folder_yet(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.job.exists = False
    run.watch(1)
    run.job.look_cpu = 10.0
    run.watch(5)
    run.job.exists = run.job.stuck = True
    run.stall()
    run.watch(1)
    assert "rank 3 never entered" in capsys.readouterr().err


@pytest.mark.parametrize(("seconds", "cpu", "pause"), [(0.02, 0.02, 4), (3, 0.02, 4), (1, 1, 25)])
def test_the_pause_grows_with_the_cpu_time_of_a_diagnosis(
    run: Run, monkeypatch: pytest.MonkeyPatch, seconds: float, cpu: float, pause: float
) -> None:
    """And not for how long it had to wait for one."""
    monkeypatch.setattr(live, "PAUSE_FACTOR", 25.0)
    run.job.look_seconds, run.job.look_cpu = seconds, cpu
    run.watch(250)
    first, second = run.job.looks[:2]
    assert pause < second - first < pause + seconds + 0.5


def test_an_internal_error_ends_neither_the_command_nor_the_watch_over_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And it is said once, with the log to report."""
    look, faulty = run.job.look, [ValueError("shapes"), ValueError("shapes")]

    def looks() -> Diagnosis:
        found = look()
        if faulty:
            raise faulty.pop()
        return found

    monkeypatch.setattr(run.job, "look", looks)
    run.watch(200)
    assert capsys.readouterr().err.count("internal error: ValueError: shapes") == 1
    assert len(run.job.looks) > 3, "it looks again later"
    faulty.append(ValueError("at the end"))
    run.report()
    assert "internal error: ValueError: at the end" in capsys.readouterr().err
