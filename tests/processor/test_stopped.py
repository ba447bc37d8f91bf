"""Detection of stopped processes, with real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.processor.sampling.stopped import StoppedProcesses

from .daemons import wait_for


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Its name is meant to confuse who reads its state."""
    code = "import time; open('/proc/self/comm', 'w').write(') T (x'); print(1, flush=True); "
    command = [sys.executable, "-c", f"{code} time.sleep(600)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
        child.kill()


@pytest.fixture
def stopped() -> Iterator[StoppedProcesses]:
    watch = StoppedProcesses()
    yield watch
    watch.close()


def test_a_process_stops_and_goes_on(
    stopped: StoppedProcesses, process: subprocess.Popen[bytes]
) -> None:
    stopped.watch("job", process.pid)
    assert stopped.look() == {}
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: stopped.look() == {"job": frozenset({process.pid})}, "stopped process")
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: stopped.look() == {}, "process that goes on")


def test_jobs_are_distinguished(
    stopped: StoppedProcesses, process: subprocess.Popen[bytes]
) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        stopped.watch("one", process.pid)
        stopped.watch("two", other.pid)
        other.send_signal(signal.SIGSTOP)
        wait_for(lambda: stopped.look() == {"two": frozenset({other.pid})}, "stopped process")
        stopped.unwatch(other.pid)
        assert stopped.look() == {}
        other.kill()


def test_a_process_that_is_gone_is_not_stopped(
    stopped: StoppedProcesses, process: subprocess.Popen[bytes]
) -> None:
    stopped.watch("job", process.pid)
    process.kill()
    process.wait()
    assert stopped.look() == {}


def test_files_are_closed(process: subprocess.Popen[bytes]) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    watch = StoppedProcesses()
    for _ in range(3):  # a rank that introduces itself again
        watch.watch("job", process.pid)
    watch.watch("job", 2**22 + 1)  # no such process
    watch.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_whose_children_all_of_them_are(
    stopped: StoppedProcesses, process: subprocess.Popen[bytes]
) -> None:
    assert not stopped.are_children_of([os.getpid()])  # nobody is
    stopped.watch("job", process.pid)
    assert stopped.are_children_of([1, os.getpid()])
    stopped.watch("job", os.getpid())
    assert not stopped.are_children_of([os.getpid()])
    stopped.unwatch(os.getpid())
    assert stopped.are_children_of([os.getpid()])
