"""What is collected without a GPU, and what that needs."""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.doctor.finding import Check, Subject
from stepscope.doctor.machine import SYS_PTRACE, Machine
from stepscope.processor.hardware.ports import ACTIVE

GB = 10**9
LEAST_FREE_BYTES = GB
"""A day of a rank takes some hundreds of MB."""
LONGEST_SOCKET = 107
"""sun_path of unix(7), without its last byte."""
_ANY_OF_OURS, _NOBODY = 2, 3
"""/proc/sys/kernel/yama/ptrace_scope: from 2 on a capability is needed, 3 is for good."""

_NOT_OURS = "is not ours to write to"
_OTHER_SOCKET = "stepscope run --socket PATH …, short and in a folder of yours"


def training(machine: Machine) -> Check:
    subject = Subject("training", "steps, phases and collectives of torch")
    if machine.packages is None:
        return subject.absent("this Python finds no torch; name another one with --python")
    why = machine.why_no_compiler()
    if why is not None:
        return subject.works(
            f"torch, watched from Python at 0.1 ms per collective: {why}", "install g++"
        )
    return subject.works("torch, watched from C++")


def stacks(machine: Machine) -> Check:
    subject = Subject("stacks", "what the host's code does, by py-spy")
    if machine.py_spy() is None:
        return subject.blocked("there is no py-spy", "pip install py-spy")
    scope = machine.text("proc/sys/kernel/yama/ptrace_scope") or "0"
    level = int(scope) if scope.isdecimal() else 0
    if level >= _NOBODY:
        return subject.blocked(
            f"ptrace_scope is {level}: nobody may look into a process until the next start",
            "set kernel.yama.ptrace_scope = 1 in /etc/sysctl.d and start the machine again",
        )
    if level == _ANY_OF_OURS and not machine.may(SYS_PTRACE):
        return subject.blocked(
            "ptrace_scope is 2, and we lack the capability SYS_PTRACE",
            "sudo sysctl kernel.yama.ptrace_scope=1; in a container: --cap-add SYS_PTRACE",
        )
    return subject.works(f"py-spy, ptrace_scope {level}")


def socket(machine: Machine) -> Check:
    subject = Subject("socket", "the way from ranks to the processor")
    path, folder = machine.socket, _nearest(machine.socket.parent)
    if len(os.fsencode(path)) > LONGEST_SOCKET:
        return subject.blocked(
            f"{path} is too long", "stepscope run --socket /tmp/stepscope.sock …"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        return subject.blocked(
            f"{folder} is not ours to write to",
            "stepscope run --socket PATH …, in a folder of yours",
        )
    return subject.works(str(path))


def disk(machine: Machine) -> Check:
    subject = Subject("disk", "job folders")
    if machine.store is None:
        return subject.works("job folders go to a bucket")
    folder = _nearest(machine.store)
    if not os.access(folder, os.W_OK | os.X_OK):
        return subject.blocked(
            f"{folder} is not ours to write to", "stepscope run --store FOLDER …"
        )
    free = machine.free_bytes(folder)
    found = f"{free / GB:.1f} GB free in {folder}"
    if free < LEAST_FREE_BYTES:
        return subject.blocked(found, "stepscope run --store FOLDER …, or --keep-gb 1")
    return subject.works(found)


def waiting(machine: Machine) -> Check:
    """/proc/PID/schedstat, which not every kernel has."""
    subject = Subject("waiting", "how long ranks wait for a CPU")
    if machine.text("proc/self/schedstat") is None:
        return subject.absent("this kernel does not count it (no /proc/PID/schedstat)")
    return subject.works("/proc/PID/schedstat")


def rdma(machine: Machine) -> Check:
    subject = Subject("rdma", "errors, retransmissions and links of RDMA adapters")
    folder = "sys/class/infiniband"
    adapters = machine.names_in(folder)
    if not adapters:
        return subject.absent("there is no RDMA adapter in /sys/class/infiniband")
    up = [name for name in adapters if _is_up(machine, f"{folder}/{name}/ports")]
    if not up:
        return subject.blocked(f"no port of {', '.join(adapters)} is up", "ibstat, and the cable")
    return subject.works(f"{', '.join(up)}")


def _is_up(machine: Machine, ports: str) -> bool:
    states = (machine.text(f"{ports}/{port}/state") or "" for port in machine.names_in(ports))
    return any(state.startswith(ACTIVE) for state in states)


def _nearest(folder: Path) -> Path:
    """The folder, or what of it exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
