"""All checks, in the order in which they are printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stepscope.doctor import gpu, host
from stepscope.doctor.finding import Check
from stepscope.doctor.machine import Machine

CHECKS: Sequence[Callable[[Machine], Check]] = (
    host.training, host.socket, host.disk, host.stacks, host.waiting, host.rdma,
    gpu.driver, gpu.nvml, gpu.kernels, gpu.nccl, gpu.counters,
)  # fmt: skip

_FACTS = {
    "ptrace_scope": "proc/sys/kernel/yama/ptrace_scope",
    "perf_event_paranoid": "proc/sys/kernel/perf_event_paranoid",
    "kernel": "proc/sys/kernel/osrelease",
}


def examine(machine: Machine) -> list[Check]:
    return [check(machine) for check in CHECKS]


def facts(machine: Machine) -> Mapping[str, str]:
    """System settings that help to interpret a bug report."""
    found = {name: machine.text(path) for name, path in _FACTS.items()}
    found[gpu.PROFILING] = gpu.profiling(machine)
    return {name: value for name, value in found.items() if value is not None}
