"""When a host's files are merged: clock and pass are fakes, but for one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from stepscope.processor.folders.upkeep import EVERY_SECONDS, Upkeep, start_compact
from stepscope.store import JobWriter, job_location


class Passes:
    """What was started; each runs until it is told to end."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.status: int | None = None
        self.terminated = False
        self.now = 0.0

    def __call__(self, arguments: Sequence[str]) -> Passes:
        self.started.append(arguments[0])
        self.status = None
        return self

    def poll(self) -> int | None:
        return self.status

    def terminate(self) -> None:
        self.terminated = True


@pytest.fixture
def passes() -> Passes:
    return Passes()


def upkeep(passes: Passes, folders: dict[str, str]) -> Upkeep:
    return Upkeep("host-0", (), lambda: folders, start=passes, clock=lambda: passes.now)


def test_a_folder_is_due_every_ten_minutes(passes: Passes) -> None:
    one = upkeep(passes, {"a": "/a"})
    for _ in range(35):
        one.turn()
        passes.status = 0
        passes.now += 60
    assert passes.now == 3.5 * EVERY_SECONDS and passes.started == ["/a"] * 3


def test_one_pass_at_a_time(passes: Passes) -> None:
    one = upkeep(passes, {"a": "/a", "b": "/b"})
    one.turn()
    for _ in range(3):
        passes.now += EVERY_SECONDS
        one.turn()
    assert passes.started == ["/a"]
    passes.status = 0
    passes.now += 1
    one.turn()
    assert passes.started == ["/a", "/b"]


def test_a_failed_pass_is_logged_and_tried_again(
    passes: Passes, caplog: pytest.LogCaptureFixture
) -> None:
    one = upkeep(passes, {"a": "/a"})
    for _ in range(3):
        one.turn()
        passes.now += EVERY_SECONDS
        passes.status = 2
    assert passes.started == ["/a"] * 2
    assert "failed with status 2" in caplog.text


def test_a_job_that_ended_is_left_alone(passes: Passes) -> None:
    folders = {"a": "/a"}
    one = upkeep(passes, folders)
    one.turn()
    folders.clear()
    passes.now += 2 * EVERY_SECONDS
    one.turn()
    assert passes.started == []


def test_the_end_of_the_processor_cuts_a_pass_off(passes: Passes) -> None:
    one = upkeep(passes, {"a": "/a"})
    one.turn()
    passes.now += EVERY_SECONDS
    one.turn()
    one.close()
    assert passes.terminated


def test_a_real_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "stepscope.processor.folders.upkeep._LOWEST", 0
    )  # tests run on busy machines
    for _ in range(8):
        writer = JobWriter(job_location(str(tmp_path), "job"), "host-0")
        writer.append("steps", {"rank": [0], "step": [1], "start_ns": [0], "duration_ns": [1]})
        writer.flush()
    for file in tmp_path.rglob("*.parquet"):
        os.utime(file, (file.stat().st_mtime - 600,) * 2)
    child = start_compact([str(tmp_path / "job"), "--host", "host-0", "--least", "8"])
    assert child.wait() == 0
    [merged] = tmp_path.rglob("*.parquet")
    assert merged.parent == tmp_path / "job/steps/sorted/recorder=host-0"
