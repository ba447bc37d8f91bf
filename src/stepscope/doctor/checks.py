"""All checks, in the order in which they are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stepscope.doctor import gpu, host
from stepscope.doctor.finding import Check
from stepscope.doctor.machine import Machine

CHECKS: Sequence[Callable[[Machine], Check]] = (
    host.training, host.socket, host.disk, host.stacks, host.waiting, host.rdma,
    gpu.driver, gpu.nvml, gpu.kernels, gpu.nccl,
)  # fmt: skip

_FACTS = {
    "ptrace_scope": "proc/sys/kernel/yama/ptrace_scope",
    "perf_event_paranoid": "proc/sys/kernel/perf_event_paranoid",
    "kernel": "proc/sys/kernel/osrelease",
}
_PROFILING = "RmProfilingAdminOnly"
"""Whether only an administrator may read a GPU's hardware counters."""


def examine(machine: Machine) -> list[Check]:
    return [check(machine) for check in CHECKS]


def facts(machine: Machine) -> Mapping[str, str]:
    """Settings that say nothing by themselves and much in a report of an error."""
    found = {name: machine.text(path) for name, path in _FACTS.items()}
    for line in (machine.text("proc/driver/nvidia/params") or "").splitlines():
        if line.startswith(f"{_PROFILING}:"):
            found[_PROFILING] = line.partition(":")[2].strip()
    return {name: value for name, value in found.items() if value is not None}
