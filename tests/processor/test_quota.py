"""Quotas of processor time: from files that a test writes, and from a group of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.groups import Groups
from stepscope.processor.hardware.cgroups import quota_files
from stepscope.processor.hardware.quota import Counted, Quotas, parsed
from stepscope.processor.hardware.sampler import HardwareSampler

PID = 7
V2 = "usage_usec 900\nuser_usec 800\nsystem_usec 100\n"


class Machine:
    """A `/proc` and the trees of control groups beside it, as a test writes them."""

    def __init__(self, folder: Path, mounts: str, groups: str) -> None:
        self.folder, self.proc = folder, folder / "proc"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / str(PID)).mkdir()
        (self.proc / "self/mounts").write_text(mounts.replace("ROOT", str(folder)))
        (self.proc / str(PID) / "cgroup").write_text(groups)

    def group(self, place: str, text: str) -> Path:
        file = self.folder / place / "cpu.stat"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file


def v2(periods: int, stopped: int, ns: int) -> str:
    return f"{V2}nr_periods {periods}\nnr_throttled {stopped}\nthrottled_usec {ns // 1000}\n"


def v1(periods: int, stopped: int, ns: int) -> str:
    return f"nr_periods {periods}\nnr_throttled {stopped}\nthrottled_time {ns}\n"


@pytest.fixture
def unified(tmp_path: Path) -> Machine:
    mounts = "tmpfs /tmp tmpfs rw 0 0\ncgroup2 ROOT/sys cgroup2 rw,nosuid 0 0\n"
    return Machine(tmp_path, mounts, "0::/pods/pod-a/container-b\n")


def test_the_group_and_its_parents_in_version_2(unified: Machine) -> None:
    own = unified.group("sys/pods/pod-a/container-b", v2(0, 0, 0))
    pod = unified.group("sys/pods/pod-a", v2(0, 0, 0))
    root = unified.group("sys", V2)
    assert quota_files(PID, unified.proc) == (own, pod, root)


def test_the_controllers_own_tree_in_version_1(tmp_path: Path) -> None:
    mounts = "cgroup ROOT/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup ROOT/cpuset cgroup cpuset\n"
    mounts = mounts.replace("cpuset\n", "rw,cpuset 0 0\n")
    machine = Machine(tmp_path, mounts, "5:cpuset:/elsewhere\n4:cpu,cpuacct:/job\n0::/\n")
    own, root = (machine.group(place, v1(0, 0, 0)) for place in ("cpu,cpuacct/job", "cpu,cpuacct"))
    machine.group("cpuset/elsewhere", v1(0, 0, 0))
    assert quota_files(PID, machine.proc) == (own, root)


def test_a_group_outside_of_this_container_is_not_looked_for(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "cgroup2 ROOT/sys cgroup2 rw 0 0\n", "0::/../beside\n")
    machine.group("beside", v2(10, 10, 10**9))
    assert quota_files(PID, machine.proc) == ()


def test_the_group_that_is_stopped_most_counts(unified: Machine) -> None:
    quotas = watching(unified, own=v2(0, 0, 0), pod=v2(100, 20, 10**9))
    assert quotas.throttled(PID) is None
    quotas.look(0.0)
    unified.group("sys/pods/pod-a", v2(110, 25, 10**9 + 4 * 10**8))
    quotas.look(1.0)
    assert quotas.throttled(PID) == pytest.approx(0.4)


def test_time_is_added_up_over_processors_and_periods_are_not(unified: Machine) -> None:
    quotas = watching(unified, own=v2(0, 0, 0), pod=v2(0, 0, 0))
    quotas.look(0.0)
    unified.group("sys/pods/pod-a", v2(10, 6, 16 * 10**8))
    quotas.look(1.0)
    assert quotas.throttled(PID) == pytest.approx(0.6)


def test_without_a_quota_nothing_is_stopped(unified: Machine) -> None:
    quotas = watching(unified, own=v2(0, 0, 0), pod=v2(0, 0, 0))
    quotas.look(0.0)
    quotas.look(1.0)
    assert quotas.throttled(PID) == 0.0


def test_a_group_that_is_gone_and_a_process_that_is_not_watched(unified: Machine) -> None:
    quotas = watching(unified, own=v2(0, 0, 0), pod=v2(0, 0, 0))
    quotas.look(0.0)
    for file in unified.folder.rglob("cpu.stat"):
        file.unlink()
    quotas.look(1.0)
    assert quotas.throttled(PID) is None and quotas.throttled(PID + 1) is None


def test_the_root_group_has_no_quota() -> None:
    assert parsed(V2.encode()) is None
    assert parsed(v1(5, 2, 700).encode()) == Counted(5, 2, 700)


def watching(machine: Machine, own: str, pod: str) -> Quotas:
    machine.group("sys/pods/pod-a/container-b", own)
    machine.group("sys/pods/pod-a", pod)
    quotas = Quotas(machine.proc)
    quotas.watch(PID)
    return quotas


@pytest.fixture
def limited() -> Iterator[subprocess.Popen[bytes]]:
    """A process that computes all the time, and may use a fifth of a processor."""
    if not Groups.are_there():
        pytest.skip("no control group of processors can be made here")
    groups = Groups(f"stepscope-quota-test-{os.getpid()}")
    groups.make("host")
    groups.set_quota("host", 0.2)
    command = [*groups.joining("host"), sys.executable, "-c", "while True: pass"]
    process = subprocess.Popen(command)
    yield process
    process.kill()
    process.wait()
    groups.remove()


def test_a_process_that_computes_all_the_time_is_stopped(limited: subprocess.Popen[bytes]) -> None:
    quotas, until = Quotas(), time.monotonic() + 60
    while "stepscope-quota" not in str(quotas._files.get(limited.pid)):
        assert time.monotonic() < until
        quotas.watch(limited.pid)  # it joins its group after it began
    began = time.monotonic()
    quotas.look(0.0)
    while not quotas.throttled(limited.pid):
        assert time.monotonic() < until
        now = time.monotonic()
        quotas.look(now - began)
        began = now
    assert 0 < (quotas.throttled(limited.pid) or 0.0) <= 1


def test_the_sampler_knows_who_has_no_processor_time_to_spare(
    limited: subprocess.Popen[bytes],
) -> None:
    sampler, until = HardwareSampler("here"), time.monotonic() + 60
    sampler.watch("job", 0, os.getpid(), 0)
    while limited.pid not in sampler.held_up:
        assert time.monotonic() < until
        sampler.watch("job", 1, limited.pid, 0)  # it joins its group after it began
        for _ in range(2):
            sampler.sample()
            time.sleep(0.3)
    assert sampler.held_up == {limited.pid}
    sampler.close()
