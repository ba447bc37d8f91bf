"""What the doctor says of machines that are made up: a folder for /, and answers for the rest."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from stepscope.cli import main
from stepscope.cli.counters import why_not
from stepscope.doctor import Check, Machine, State, checks, examine
from stepscope.processor.sockets.listener import LONGEST_SOCKET_PATH

Answer = Callable[[Machine], Machine]


@pytest.fixture
def laptop(tmp_path: Path) -> Machine:
    """Without a GPU; all that is there works."""
    root = tmp_path / "root"
    write(root, "proc/sys/kernel/yama/ptrace_scope", "1")
    write(root, "proc/self/schedstat", "1 2 3")
    write(root, "proc/self/status", "Name:\tx\nCapEff:\t0000000000000000")
    packages = tmp_path / "packages"
    packages.mkdir()
    return Machine(
        packages, tmp_path / "runs", root, {}, tmp_path / "p.sock", tmp_path / "lib",
        py_spy=lambda: "py-spy", free_bytes=lambda _: 10**10, processes=lambda: {"python"},
        library_version=lambda _: None, gpu_count=lambda: 0,
    )  # fmt: skip


@pytest.fixture
def server(laptop: Machine) -> Machine:
    """With eight GPUs and RDMA."""
    write(laptop.root, "proc/driver/nvidia/version", "NVRM version: Module  580.82.07  Release")
    write(laptop.root, "proc/driver/nvidia/params", "ModifyDeviceFiles: 1\nRmProfilingAdminOnly: 0")
    write(laptop.root, "sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE")
    write(laptop.library_folder, "libstepscope_cupti.so", "")
    write(laptop.library_folder, "libstepscope_pm.so", "")
    write(laptop.library_folder, "libnccl-profiler-stepscope.so", "")
    assert laptop.packages is not None
    write(laptop.packages, "nvidia/cu13/lib/libnvperf_host.so", "")
    write(laptop.packages, "nvidia_nccl_cu13-2.28.9.dist-info/METADATA", "")
    return replace(laptop, library_version=lambda _: 130001, gpu_count=lambda: 8)


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def move_behind_a_link(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


def look(machine: Machine) -> dict[str, Check]:
    return {check.name: check for check in examine(machine)}


def states(machine: Machine) -> dict[str, State]:
    return {name: check.state for name, check in look(machine).items()}


def test_a_laptop_without_gpu_has_nothing_blocked(laptop: Machine) -> None:
    absent = {name for name, state in states(laptop).items() if state is State.ABSENT}
    assert absent == {"rdma", "driver", "nvml", "kernels", "nccl", "counters"}
    assert State.BLOCKED not in states(laptop).values()


def test_on_a_server_everything_works(server: Machine) -> None:
    assert set(states(server).values()) == {State.WORKS}
    assert look(server)["driver"].found == "NVIDIA driver 580.82.07"
    assert look(server)["nvml"].found == "8 GPUs"
    assert look(server)["nccl"].found == "NCCL 2.28.9"
    assert look(server)["counters"].found == "libcupti.so.13, version 130001"


def test_permission_to_read_gpu_counters(server: Machine) -> None:
    write(server.root, "proc/driver/nvidia/params", "RmProfilingAdminOnly: 1")
    check = look(server)["counters"]
    assert (
        check.state is State.BLOCKED and check.found == "this user has no permission to read them"
    )
    assert check.advice is not None and "CAP_PERFMON" in check.advice
    write(server.root, "proc/self/status", f"Name:\tx\nCapEff:\t{1 << 38:016x}")
    assert states(server)["counters"] is State.WORKS


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda one: replace(one, library_version=lambda _: None),
            "neither libcupti.so.13 nor libcupti.so.12",
        ),
        (lambda one: replace(one, library_version=lambda _: 23), "at least 24 (CUDA 12.6)"),
        (lambda one: replace(one, library_folder=one.root), "libstepscope_pm.so was not built"),
        (lambda one: replace(one, processes=lambda: {"nv-hostengine"}), "nv-hostengine is running"),
        (lambda one: replace(one, packages=one.root), "libnvperf_host.so is missing next to"),
    ],
)
def test_why_counters_cannot_be_sampled(server: Machine, change: Answer, said: str) -> None:
    check = look(change(server))["counters"]
    assert check.state is State.BLOCKED and check.advice
    assert said in check.found


def test_every_trouble_comes_with_something_to_do(server: Machine) -> None:
    worst = replace(
        server, py_spy=lambda: None, free_bytes=lambda _: 0, library_version=lambda _: 20,
        socket=Path("/" + "x" * 120), env={"NCCL_PROFILER_PLUGIN": "inspector"},
        gpu_count=no_nvml,
    )  # fmt: skip
    troubled = [check for check in examine(worst) if check.state is State.BLOCKED]
    names = {"stacks", "disk", "socket", "nvml", "kernels", "nccl", "counters"}
    assert {check.name for check in troubled} == names
    assert all(check.advice for check in troubled)


def no_nvml() -> int:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


def test_a_gpu_without_a_driver_is_trouble(laptop: Machine) -> None:
    write(laptop.root, "sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de")
    write(laptop.root, "sys/bus/pci/devices/0000:01:00.0/class", "0x030200")
    assert states(laptop)["driver"] is State.BLOCKED


@pytest.mark.parametrize(("scope", "state"), [("1", "works"), ("2", "blocked"), ("3", "blocked")])
def test_permission_to_inspect_ranks(laptop: Machine, scope: str, state: str) -> None:
    write(laptop.root, "proc/sys/kernel/yama/ptrace_scope", scope)
    assert look(laptop)["stacks"].state == state


@pytest.mark.parametrize(
    ("spoil", "said", "advised"),
    [
        (lambda folder: folder.chmod(0o750), "(mode 750)", "chmod 700 "),
        (lambda folder: os.chown(folder, 12345, 12345), "belongs to user 12345", "remove it"),
        (move_behind_a_link, "is a symbolic link", "name the folder itself"),
        (lambda folder: (folder.rmdir(), folder.touch()), "is no folder", "remove it"),
    ],
)
def test_the_socket_needs_a_folder_without_other_users(
    laptop: Machine, tmp_path: Path, spoil: Callable[[Path], None], said: str, advised: str
) -> None:
    folder = tmp_path / "sockets"
    machine = replace(laptop, socket=folder / "p.sock")
    assert states(machine)["socket"] is State.WORKS, "it will be created"
    folder.mkdir(mode=0o700)
    assert states(machine)["socket"] is State.WORKS
    try:
        spoil(folder)
    except PermissionError:
        pytest.skip("only root can give a folder to another user")
    check = look(machine)["socket"]
    assert check.state is State.BLOCKED and said in check.found
    assert check.advice is not None and advised in check.advice and "--socket" in check.advice


def test_a_socket_path_that_the_processor_refuses_is_too_long(laptop: Machine) -> None:
    folder = f"{tempfile.gettempdir()}/"
    longest = folder + "x" * (LONGEST_SOCKET_PATH - len(folder) - len("/p.sock")) + "/p.sock"
    assert states(replace(laptop, socket=Path(longest)))["socket"] is State.WORKS
    longer = Path(folder + "x" + longest.removeprefix(folder))
    assert states(replace(laptop, socket=longer))["socket"] is State.BLOCKED


def test_a_capability_makes_up_for_a_strict_setting(laptop: Machine) -> None:
    write(laptop.root, "proc/sys/kernel/yama/ptrace_scope", "2")
    write(laptop.root, "proc/self/status", "CapEff:\t0000000000080000")
    assert look(laptop)["stacks"].state is State.WORKS


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: replace(one, env={"CUDA_INJECTION64_PATH": "/nsys/lib.so"}), "another"),
        (lambda one: replace(one, processes=lambda: {"ncu"}), "ncu is running"),
        (
            lambda one: replace(one, library_version=lambda _: None),
            "neither libcupti.so.13 nor libcupti.so.12",
        ),
        (lambda one: replace(one, library_version=lambda _: 21), "version 21"),
        (lambda one: replace(one, library_folder=one.root), "not built"),
    ],
)
def test_why_kernels_cannot_be_recorded(server: Machine, change: Answer, said: str) -> None:
    check = look(change(server))["kernels"]
    assert check.state is State.BLOCKED
    assert said in check.found


def test_run_says_at_once_that_counters_will_not_be_sampled(server: Machine) -> None:
    assert why_not(server) is None
    write(server.root, "proc/driver/nvidia/params", "RmProfilingAdminOnly: 1")
    said = why_not(server)
    assert said is not None and said.startswith(
        "this user has no permission to read them; start the processor"
    )
    (server.root / "proc/driver/nvidia/version").unlink()
    assert why_not(server) == "no NVIDIA driver"


def test_the_copy_that_torch_brings_is_asked_first(server: Machine) -> None:
    asked: list[str] = []

    def version(name: str) -> int:
        asked.append(name)
        return 27

    look(replace(server, library_version=version))
    assert set(asked) == {f"{server.packages}/nvidia/cu13/lib/libcupti.so.13"}


def test_an_old_nccl_has_no_interface(server: Machine) -> None:
    assert server.packages is not None
    (server.packages / "nvidia_nccl_cu13-2.28.9.dist-info").rename(
        server.packages / "nvidia_nccl_cu12-2.21.5.dist-info"
    )
    assert look(server)["nccl"].state is State.BLOCKED


def test_ports_that_are_down_are_trouble(server: Machine) -> None:
    write(server.root, "sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN")
    assert states(server)["rdma"] is State.BLOCKED


def test_settings_are_listed(server: Machine) -> None:
    assert checks.facts(server) == {"ptrace_scope": "1", "RmProfilingAdminOnly": "0"}


def test_the_command_prints_text_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], laptop: Machine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("stepscope.doctor.this_machine", lambda *_: laptop)
    assert main(["doctor"]) == 0
    assert "absent: no NVIDIA GPU" in capsys.readouterr().out
    monkeypatch.setattr(
        "stepscope.doctor.this_machine", lambda *_: replace(laptop, py_spy=lambda: None)
    )
    assert main(["doctor", "--json"]) == 1
    output = json.loads(capsys.readouterr().out)
    blocked = [check for check in output["checks"] if check["state"] == "blocked"]
    assert [check["advice"] for check in blocked] == ["pip install py-spy"]
    assert output["schema"] == 1


def test_doctor_runs_on_the_test_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) in (0, 1)
    assert "training" in capsys.readouterr().out
