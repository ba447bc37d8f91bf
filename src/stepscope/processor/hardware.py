"""Counters of the host and of every rank's process, from outside: /proc, psutil, NVML.

Per rank: `cpu_util` (cores used by the process), `run_delay` (share of the time
that the main thread was runnable and had to wait for a CPU), `proc_stopped` (1 while the process
is stopped or gone), `allowed_cpus`, and, where a rank waits much for its CPU,
`stranger_cpu_util` (cores that processes outside the job use on the CPUs this rank may run on),
and `gpu_index`, the number of the GPU it was seen to compute on.
Per host (rank -1): `cpu_util` (0 to 1), `cpu_util.core<N>`, `load1`, `mem_available_bytes`,
`nic_rx_bytes_per_s` and `nic_tx_bytes_per_s`, where there is a GPU NVML's figures and
`gpu_strangers.gpu<N>`, the processes outside the job that compute on it, and those of RDMA ports.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from stepscope.processor.normalise import Rows
from stepscope.processor.nvml import Gpus
from stepscope.processor.ports import Ports, rdma_adapters
from stepscope.processor.proc import ProcessFiles
from stepscope.processor.strangers import Strangers

STRANGERS_FROM = 0.2
"""Run delay from which a look at all processes of the host is worth its cost."""
GPU_USERS_SECONDS = 10.0
"""Who computes on a GPU hardly changes, and to ask costs more than to read a counter."""

Sample = tuple[int, str, float]
"""(rank, metric, value)"""


@dataclass
class _Watched:
    """One rank's process, and what its counters said last time."""

    rank: int
    process: psutil.Process
    files: ProcessFiles
    cpu_seconds: float | None = None
    delay_ns: int | None = None


class HardwareSampler:
    """Samples all watched processes and the host. Not thread-safe: one thread owns it."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._watched: dict[int, _Watched] = {}
        self._halted: set[int] = set()
        self._gpus, self._ports = Gpus(), Ports()
        self._last: float | None = None
        self._looked_at_gpus = -GPU_USERS_SECONDS
        self._network = _network_bytes()
        self._strangers = Strangers(self._family)
        psutil.cpu_percent(percpu=True)

    @property
    def gpus(self) -> tuple[str, ...]:
        return self._gpus.names

    @property
    def halted(self) -> frozenset[int]:
        """The pids that the last sample found stopped or gone."""
        return frozenset(self._halted)

    def watch(self, rank: int, pid: int, thread_id: int) -> None:
        self.unwatch(pid)
        try:
            process = psutil.Process(pid)
            self._watched[pid] = _Watched(rank, process, ProcessFiles(pid, thread_id))
        except (psutil.Error, OSError):
            return

    def unwatch(self, pid: int) -> None:
        watched = self._watched.pop(pid, None)
        if watched is not None:
            watched.files.close()
        self._halted.discard(pid)

    def sample(self) -> Rows:
        """One sample of everything, as rows of `hardware`."""
        now, elapsed = time.time_ns(), self._elapsed()
        samples = list(self._host_samples(elapsed))
        samples += self._users_of_gpus()
        for pid, watched in self._watched.items():
            of_rank = self._rank_samples(watched, elapsed)
            (self._halted.add if _is_halted(of_rank) else self._halted.discard)(pid)
            samples += of_rank
        return self._rows(samples, now)

    def pulse(self) -> Rows:
        """Only who is stopped: cheap, and right at any rate, unlike what is counted in ticks."""
        now = time.time_ns()
        samples = [(one.rank, "proc_stopped", float(_is_stopped(one.files)))
                   for one in self._watched.values()]  # fmt: skip
        self._halted = {
            pid for pid, (_, _, value) in zip(self._watched, samples, strict=True) if value
        }
        return self._rows(samples, now)

    def _rows(self, samples: list[Sample], now_ns: int) -> Rows:
        return {
            "rank": [rank for rank, _, _ in samples],
            "host": [self._host] * len(samples),
            "metric": [metric for _, metric, _ in samples],
            "ts_ns": [now_ns] * len(samples),
            "value": [value for _, _, value in samples],
        }

    def _elapsed(self) -> float:
        now = time.monotonic()
        elapsed = 0.0 if self._last is None else now - self._last
        self._last = now
        return elapsed

    def _host_samples(self, elapsed: float) -> Iterator[Sample]:
        cores = psutil.cpu_percent(percpu=True)
        yield -1, "cpu_util", sum(cores) / len(cores) / 100
        for core, percent in enumerate(cores):
            yield -1, f"cpu_util.core{core}", percent / 100
        yield -1, "load1", os.getloadavg()[0]
        yield -1, "mem_available_bytes", float(psutil.virtual_memory().available)
        network, before = _network_bytes(), self._network
        self._network = network
        if elapsed > 0:
            yield -1, "nic_rx_bytes_per_s", (network[0] - before[0]) / elapsed
            yield -1, "nic_tx_bytes_per_s", (network[1] - before[1]) / elapsed
        for metric, value in (*self._gpus.sample(), *self._ports.sample()):
            yield -1, metric, value

    def _users_of_gpus(self) -> Iterator[Sample]:
        """Which rank computes on which GPU, and how many strangers do, where pids are ours."""
        if self._last is None or self._last < self._looked_at_gpus + GPU_USERS_SECONDS:
            return
        self._looked_at_gpus = self._last
        there = self._gpus.processes()
        for pid, watched in self._watched.items():
            on = [index for index, pids in there.items() if pid in pids]
            if len(on) == 1:
                yield watched.rank, "gpu_index", float(on[0])
        shared = {index: pids for index, pids in there.items() if pids & self._watched.keys()}
        ours = (
            self._family() if any(pids - self._watched.keys() for pids in shared.values()) else ()
        )
        for index, pids in shared.items():
            strangers = pids.difference(self._watched, ours)
            yield -1, f"gpu_strangers.gpu{index}", float(len(strangers))

    def _rank_samples(self, watched: _Watched, elapsed: float) -> list[Sample]:
        rank = watched.rank
        try:
            look = watched.files.look()
            if look.stopped:
                return [(rank, "proc_stopped", 1.0), (rank, "cpu_util", 0.0)]
            cpu = self._cpu_samples(watched, look.cpu_seconds, elapsed)
            return [(rank, "proc_stopped", 0.0), *cpu]
        except (psutil.Error, OSError):
            return [(rank, "proc_stopped", 1.0)]

    def _cpu_samples(self, watched: _Watched, cpu: float, elapsed: float) -> Iterator[Sample]:
        delay = watched.files.run_delay_ns()
        before, watched.cpu_seconds = watched.cpu_seconds, cpu
        delay_before, watched.delay_ns = watched.delay_ns, delay
        if elapsed <= 0 or before is None:
            return
        yield watched.rank, "cpu_util", (cpu - before) / elapsed
        if delay is None or delay_before is None:
            return
        waited = (delay - delay_before) / 1e9 / elapsed
        yield watched.rank, "run_delay", waited
        if waited > STRANGERS_FROM:
            yield from self._stranger_samples(watched)

    def _stranger_samples(self, watched: _Watched) -> Iterator[Sample]:
        allowed = set(watched.process.cpu_affinity() or ())
        yield watched.rank, "allowed_cpus", float(len(allowed))
        used = self._strangers.cores_used(allowed)
        if used is not None:
            yield watched.rank, "stranger_cpu_util", used

    def _family(self) -> set[int]:
        """Processes of the jobs here and of stepscope: everybody else is a stranger."""
        family = {os.getpid()}
        for process in [psutil.Process(), *(w.process for w in self._watched.values())]:
            try:
                family.update(p.pid for p in [*process.parents(), *process.children(True)])
                family.add(process.pid)
            except psutil.Error:
                continue
        return family


def _is_stopped(files: ProcessFiles) -> bool:
    try:
        return files.look().stopped
    except OSError:
        return True


def _is_halted(samples: list[Sample]) -> bool:
    return any(metric == "proc_stopped" and value for _, metric, value in samples)


def adapters() -> tuple[str, ...]:
    """RDMA adapters that are up, by which NCCL moves data; else interfaces, loopback aside."""
    return rdma_adapters() or _interfaces()


def _interfaces() -> tuple[str, ...]:
    stats = psutil.net_if_stats()
    return tuple(sorted(name for name, stat in stats.items() if stat.isup and name != "lo"))


def _network_bytes() -> tuple[int, int]:
    """Bytes received and sent since boot on all interfaces but loopback."""
    counters = psutil.net_io_counters(pernic=True)
    rows = [counter for name, counter in counters.items() if name != "lo"]
    return sum(row.bytes_recv for row in rows), sum(row.bytes_sent for row in rows)
