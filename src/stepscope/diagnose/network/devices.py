"""The devices that a rank uses, by the full names that findings use: `host-000/gpu-5`.

Devices are known from `job.json` and from the tables. By default the GPUs and NICs of a host belong
to its ranks in order. The GPU that a rank really uses may be in table `hardware` (see `gauges`),
its NIC in table `transfers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.finding import Device, Finding, Slowdown
from stepscope.diagnose.prepare.gauges import indices
from stepscope.diagnose.thresholds import PROCESSOR_TIME
from stepscope.diagnose.words.advice import was_stopped
from stepscope.trace import Host
from stepscope.window import Window, first_rows, numbered

USE = "processor-use"
"""The evidence on what the processor did during an excess (`explain.cpu`)."""
MOST_HOSTS = 8
"""Hosts that are listed as devices, where all are concerned. Our choice."""

UUID = "GPU-"
"""How NVIDIA's UUIDs of GPUs begin; other collectors may name GPUs by them."""

ON_GPU = ("kernels", "kernel_summaries")
"""Tables that only jobs on GPUs have."""


@dataclass(frozen=True)
class Devices:
    """The devices of a job's ranks; None if a device is not known to exist."""

    window: Window

    def host(self, rank: int) -> str | None:
        host = self._host_of.get(rank)
        return None if host is None else host.name

    def gpu(self, rank: int) -> str | None:
        host = self._host_of.get(rank)
        if host is None or not self._computes_on_gpus:
            return None
        at = self._gpu_at(host, rank)
        return f"{host.name}/{host.gpus[at] if self._is_named(host, rank) else f'gpu-{at}'}"

    def gpu_uuid(self, rank: int) -> str:
        """The UUID of a rank's GPU; empty if that was not recorded."""
        host = self._host_of.get(rank)
        if host is None or not self._is_named(host, rank):
            return ""
        at = self._gpu_at(host, rank)
        if host.gpus[at].startswith(UUID):
            return host.gpus[at]
        return host.gpu_uuids[at] if at < len(host.gpu_uuids) else ""

    def _is_named(self, host: Host, rank: int) -> bool:
        """Whether it is known which of the host's GPUs a rank uses."""
        seen = rank in self._gpu_seen or len(host.gpus) == len(host.ranks)
        return seen and self._gpu_at(host, rank) < len(host.gpus)

    def pcie(self, rank: int) -> str | None:
        """The PCIe path from a rank's GPU to its host and its NIC."""
        if self.gpu(rank) is None:
            return None
        host = self._host_of[rank]
        return f"{host.name}/pcie-{self._gpu_at(host, rank)}"

    def place(self, rank: int) -> str:
        """Where a rank computes: its GPU, by its share of the host's if none was seen."""
        host = self._host_of.get(rank)
        if host is None:
            return f"rank {rank}"
        return self.gpu(rank) or f"{host.name}/gpu-{self._gpu_at(host, rank)}"

    def port(self, rank: int) -> str:
        """Where a rank's data leaves its host: its NIC, as far as that is known."""
        host = self._host_of.get(rank)
        if host is None:
            return f"rank {rank}"
        return self.nic(rank) or f"{host.name}/{host.nics[0] if host.nics else 'nic'}"

    def nvlink(self, rank: int) -> str | None:
        """The NVLink of a rank's host, if hardware counters show that it has one."""
        host = self._host_of.get(rank)
        return f"{host.name}/nvlink" if host is not None and self._counts_nvlink else None

    def nic(self, rank: int) -> str | None:
        """The NIC that a rank was observed to send through, else its share of its host's NICs: of
        GPUs, or where each rank has one of its own, as devices that move data themselves do."""
        host = self._host_of.get(rank)
        if host is None:
            return None
        used = self._nic_used.get(rank)
        if used is not None:
            return f"{host.name}/{used}"
        if len(host.nics) == 1:
            return f"{host.name}/{host.nics[0]}"
        if not host.nics or (self.gpu(rank) is None and len(host.nics) != len(host.ranks)):
            return None
        at = host.ranks.index(rank) * len(host.nics) // len(host.ranks)
        return f"{host.name}/{host.nics[at]}"

    @cached_property
    def _host_of(self) -> Mapping[int, Host]:
        return {rank: host for host in self.window.job.hosts for rank in host.ranks}

    @cached_property
    def _computes_on_gpus(self) -> bool:
        kernels = any(self.window.table(name) is not None for name in ON_GPU)
        return kernels or bool(self._gpu_seen)

    def _gpu_at(self, host: Host, rank: int) -> int:
        return self._gpu_seen.get(rank, host.ranks.index(rank))

    @cached_property
    def _gpu_seen(self) -> Mapping[int, int]:
        return indices(self.window)

    @cached_property
    def _counts_nvlink(self) -> bool:
        hardware = self.window.table("hardware")
        return hardware is not None and any(
            metric.startswith("nvlink_") for metric in hardware.strings("metric").values
        )

    @cached_property
    def _nic_used(self) -> Mapping[int, str]:
        """The NIC in most of each rank's rows of `transfers`."""
        table = self.window.table("transfers")
        if table is None or not table.has("nic"):
            return {}
        names = table.strings("nic")
        rank, code = table.ints("rank"), names.codes.astype(np.int64)
        known = (rank >= 0) & (code >= 0)
        rank, code = rank[known], code[known]
        number = numbered(rank, code)
        # the most frequent is written last
        rows = first_rows(number)[np.argsort(np.bincount(number), kind="stable")]
        used = zip(rank[rows].tolist(), code[rows].tolist(), strict=True)
        return {one: names.values[nic] for one, nic in used}


def host_in(name: str) -> str:
    """The host in the name of a device, `host-000/nic-1`; a host's own name as it is."""
    return name.partition("/")[0]


def all_hosts(window: Window) -> tuple[Device, ...]:
    """The hosts of all recorded ranks, if they are few."""
    ranks = set(window.ranks)
    hosts = [one.name for one in window.job.hosts if ranks.intersection(one.ranks)]
    few = hosts if len(hosts) <= MOST_HOSTS else []
    return tuple(Device("host", name, round(1 / len(hosts), 3)) for name in few)


def _slept(finding: Finding) -> bool:
    """Whether most of the excess is known to be neither processor time nor waiting for it."""
    for one in finding.supporting if isinstance(finding, Slowdown) else ():
        known = [one.values.get(name) for name in ("computed", "starved")]
        if one.method == USE and None not in known:
            return sum(value for value in known if isinstance(value, float)) < PROCESSOR_TIME
    return False


def culprit_devices(window: Window, finding: Finding, hosts: Sequence[str]) -> tuple[Device, ...]:
    """The devices at fault for slow ranks: GPUs, the PCIe paths to them, or the hosts' CPUs.

    If a function is slow, or the process was stopped, no device is at fault; nor is a processor
    for time in which the rank neither used it nor waited for it.
    """
    if finding.function is not None or was_stopped(finding):
        return ()
    sure = round(finding.score, 3)
    of_gpu = finding.cause == "compute" or (isinstance(finding, Slowdown) and finding.of_gpu)
    if finding.cause == "host" and not of_gpu and _slept(finding):
        return ()
    if finding.cause in ("contention", "host") and not of_gpu:
        return tuple(Device("cpu", f"{host}/cpu", sure) for host in hosts)
    known = Devices(window)
    if of_gpu:
        names = dict.fromkeys(map(known.gpu, finding.ranks))
        return tuple(Device("gpu", name, sure) for name in names if name is not None)
    if finding.cause == "memory_copy":
        names = dict.fromkeys(map(known.pcie, finding.ranks))
        return tuple(Device("pcie", name, sure) for name in names if name is not None)
    return ()
