"""Two processes that claim one rank, as real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .daemons import Daemon, ints, wait_for

_RANK = """
import os, sys
from stepscope.collect.identity import Identity
from stepscope.collect.session import Session

session = Session(sys.argv[1], Identity("twice", sys.argv[2], "host"))
for line in sys.stdin:
    session.phase("work", (0, 0, 0, 0, None), (1, 1, 0, 0, None))
"""


def rank(daemon: Daemon, store: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _RANK, str(daemon.path), str(store)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    trains(process)
    return process


def trains(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    print(file=process.stdin, flush=True)


@pytest.mark.usefixtures("unowned")
def test_a_rank_is_recorded_once_and_again_after_a_restart(daemon: Daemon, tmp_path: Path) -> None:
    def phases() -> int:
        daemon.flush("twice")
        return len(ints(tmp_path / "twice", "phases", "rank"))

    first = rank(daemon, tmp_path)
    wait_for(lambda: phases() == 1, "row of the first process")
    second = rank(daemon, tmp_path)
    wait_for(lambda: bool(daemon.log_of("rank 0 of twice is recorded from")), "refusal")
    (note,) = daemon.flush("twice")["notes"]
    assert f"not {second.pid}" in note
    trains(first)
    wait_for(lambda: phases() == 2, "row of the first process only")

    first.kill()
    first.wait()

    def second_is_recorded() -> bool:
        trains(second)  # what it sent before it was refused is lost
        return phases() > 2

    wait_for(second_is_recorded, "row of the second process")
    for process in (first, second):
        process.kill()
        process.communicate()


@pytest.fixture
def unowned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPSCOPE_OWNER", raising=False)
