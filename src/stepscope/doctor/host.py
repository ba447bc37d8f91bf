"""Checks of what can be recorded without a GPU."""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.doctor.finding import Check, Subject
from stepscope.doctor.machine import SYS_PTRACE, Machine
from stepscope.processor.hardware.ports import ACTIVE
from stepscope.processor.sockets.listener import LONGEST_SOCKET_PATH
from stepscope.processor.sockets.private import trouble_of

GB = 10**9
LEAST_FREE_BYTES = GB
"""One rank records several hundred MB per day."""
_PTRACE_ADMIN_ONLY, _PTRACE_DISABLED = 2, 3
"""Values of /proc/sys/kernel/yama/ptrace_scope; 3 cannot be changed until the next boot."""


def training(machine: Machine) -> Check:
    subject = Subject("training", "steps, phases and collectives of torch")
    if machine.packages is None:
        return subject.absent("this Python cannot find torch; name another one with --python")
    why = machine.why_no_compiler()
    if why is not None:
        return subject.works(
            f"torch, recorded from Python at 0.1 ms per collective: {why}", "install g++"
        )
    return subject.works("torch, recorded from C++")


def stacks(machine: Machine) -> Check:
    subject = Subject("stacks", "call stacks of the host code, by py-spy")
    if machine.py_spy() is None:
        return subject.blocked("py-spy is not installed", "pip install py-spy")
    scope = machine.text("proc/sys/kernel/yama/ptrace_scope") or "0"
    level = int(scope) if scope.isdecimal() else 0
    if level >= _PTRACE_DISABLED:
        return subject.blocked(
            f"ptrace_scope is {level}: no process may be inspected until the next boot",
            "set kernel.yama.ptrace_scope = 1 in /etc/sysctl.d and reboot",
        )
    if level == _PTRACE_ADMIN_ONLY and not machine.may(SYS_PTRACE):
        return subject.blocked(
            "ptrace_scope is 2, and this user lacks the capability SYS_PTRACE",
            "sudo sysctl kernel.yama.ptrace_scope=1; in a container: --cap-add SYS_PTRACE",
        )
    return subject.works(f"py-spy, ptrace_scope {level}")


def socket(machine: Machine) -> Check:
    """Checks that its folder is this user's alone; one that does not exist is created like that."""
    subject = Subject("socket", "the connection from ranks to the processor")
    path, folder = machine.socket, _nearest(machine.socket.parent)
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
        return subject.blocked(
            f"{path} is too long", "stepscope run --socket /tmp/mine/stepscope.sock …"
        )
    trouble = trouble_of(path.parent) if os.path.lexists(path.parent) else None
    if trouble is not None:
        advice = f"{trouble.advice}, or stepscope run --socket PATH …, in a folder with mode 0700"
        return subject.blocked(f"{trouble.found}: nothing would be recorded", advice)
    if not os.access(folder, os.W_OK | os.X_OK):
        return subject.blocked(
            f"no permission to write to {folder}",
            "stepscope run --socket PATH …, in a writable folder",
        )
    return subject.works(str(path))


def disk(machine: Machine) -> Check:
    subject = Subject("disk", "job folders")
    if machine.store is None:
        return subject.works("job folders go to a bucket")
    folder = _nearest(machine.store)
    if not os.access(folder, os.W_OK | os.X_OK):
        return subject.blocked(
            f"no permission to write to {folder}", "stepscope run --store FOLDER …"
        )
    free = machine.free_bytes(folder)
    found = f"{free / GB:.1f} GB free in {folder}"
    if free < LEAST_FREE_BYTES:
        return subject.blocked(found, "stepscope run --store FOLDER …, or --keep-gb 1")
    return subject.works(found)


def waiting(machine: Machine) -> Check:
    """Checks for /proc/PID/schedstat, which not every kernel provides."""
    subject = Subject("waiting", "the time that ranks wait for a CPU")
    if machine.text("proc/self/schedstat") is None:
        return subject.absent("this kernel does not record it (no /proc/PID/schedstat)")
    return subject.works("/proc/PID/schedstat")


def rdma(machine: Machine) -> Check:
    subject = Subject("rdma", "errors, retransmissions and link states of RDMA adapters")
    folder = "sys/class/infiniband"
    adapters = machine.names_in(folder)
    if not adapters:
        return subject.absent("no RDMA adapter in /sys/class/infiniband")
    up = [name for name in adapters if _is_up(machine, f"{folder}/{name}/ports")]
    if not up:
        return subject.blocked(
            f"no port of {', '.join(adapters)} is up", "check ibstat and the cable"
        )
    return subject.works(f"{', '.join(up)}")


def _is_up(machine: Machine, ports: str) -> bool:
    states = (machine.text(f"{ports}/{port}/state") or "" for port in machine.names_in(ports))
    return any(state.startswith(ACTIVE) for state in states)


def _nearest(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
