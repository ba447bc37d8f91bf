"""Sampling from outside, and the order in which it is stored. The rank is a real process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.processor.instructions import Watch
from stepscope.processor.records.normalise import Rows
from stepscope.processor.sampling.watcher import OutsideWatcher
from stepscope.processor.settings import Settings

_PROGRAM = """
import time

def trains():
    print("ready", flush=True)
    while True:
        time.sleep(0.01)

trains()
"""


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()


def _says_stopped(table: str, rows: Rows) -> bool:
    return table == "hardware" and any(
        metric == "proc_stopped" and value
        for metric, value in zip(rows["metric"], rows["value"], strict=True)
    )


def test_stacks_of_a_stopped_process_are_stored_before_the_stop_itself(
    rank: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """A verdict may be asked for at any moment: it has the stack as soon as it can be given."""
    stored: list[tuple[str, Rows]] = []
    settings = Settings(socket=tmp_path / "p.sock", hardware_seconds=0.3)
    watcher = OutsideWatcher("host-0", settings, lambda _job, table, r: stored.append((table, r)))
    watcher.watch(Watch("job", 0, rank.pid, rank.pid))
    until = time.monotonic() + 30
    while not any(table == "hardware" for table, _ in stored):
        assert time.monotonic() < until
        time.sleep(0.05)
    rank.send_signal(signal.SIGSTOP)
    while not any(_says_stopped(*one) for one in stored):
        assert time.monotonic() < until
        time.sleep(0.05)
    watcher.close()
    at = next(i for i, one in enumerate(stored) if _says_stopped(*one))
    stacks = [rows["frames"] for table, rows in stored[:at] if table == "stacks"]
    assert any("trains (" in frames for rows in stacks for frames in rows)
