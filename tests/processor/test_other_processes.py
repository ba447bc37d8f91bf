"""CPU use of other processes on the CPUs that a rank may run on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from stepscope.processor.hardware import other_processes
from stepscope.processor.hardware.other_processes import OtherProcesses

BURN = "import os; os.sched_setaffinity(0, {%d})\nwhile True: sum(range(1000))"


@pytest.fixture
def burner() -> Iterator[tuple[int, int]]:
    """A process that burns one CPU: its pid, and the CPU."""
    cpu = max(os.sched_getaffinity(0))
    process = subprocess.Popen([sys.executable, "-c", BURN % cpu])
    yield process.pid, cpu
    process.kill()
    process.wait()


def burnt_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def looked_twice(
    families: list[set[int]], burner: int, monkeypatch: pytest.MonkeyPatch
) -> list[OtherProcesses]:
    """Two looks of each, between which the burner used half a second of its CPU."""
    monkeypatch.setattr(other_processes, "LOOK_SECONDS", 0.0)
    watches = [OtherProcesses(lambda family=family: family) for family in families]  # type: ignore[misc]
    for watch in watches:
        assert watch.cores_used(frozenset()) is None, "the first look is only the baseline"
    before = burnt_seconds(burner)
    while burnt_seconds(burner) < before + 0.5:
        pass
    for watch in watches:
        watch.cores_used(frozenset())
    monkeypatch.setattr(other_processes, "LOOK_SECONDS", 3600.0)
    return watches


def test_another_process_counts_on_its_own_cpu_only(
    burner: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, cpu = burner
    (watch,) = looked_twice([{os.getpid()}], pid, monkeypatch)
    used, nowhere = watch.cores_used({cpu}), watch.cores_used({10_000})
    assert used is not None
    assert used > 0.1
    assert nowhere == 0


def test_processes_of_the_job_do_not_count(
    burner: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two who look at the same time, one of them related to the burner."""
    pid, cpu = burner
    everybody, others = looked_twice([{os.getpid()}, {os.getpid(), pid}], pid, monkeypatch)
    used, without = everybody.cores_used({cpu}), others.cores_used({cpu})
    assert used is not None
    assert without is not None
    assert without < used
