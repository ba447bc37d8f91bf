"""Samples hardware counters of the host and of every rank's process, from /proc, NVML and sysfs.

Per rank: `cpu_util` (cores used by the process), `run_delay` (share of the time that the main
thread was runnable but waited for a CPU), `comm_run_delay` (the same of the threads that move its
data, together), `cpu_throttled` (share of the time in which a quota kept
its control group from running), `proc_stopped` (1 while the process is stopped or gone) and
`gpu_index` (the GPU it computes on). If a rank waits much for its CPU, also `allowed_cpus` and
`stranger_cpu_util` (cores that processes outside the job use on the CPUs this rank may run on).
Per host (rank -1): `cpu_util` (0 to 1), `cpu_util.core<N>`, `load1`, `mem_available_bytes`,
`nic_rx_bytes_per_s`, `nic_tx_bytes_per_s`, `tcp_out_segs_per_s`, `tcp_retrans_per_s` and metrics of
RDMA ports. If there are GPUs, also NVML's metrics and `gpu_strangers.gpu<N>` (processes outside the
job that compute on that GPU).
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field

import psutil

from stepscope.processor.hardware.comm_threads import CommThreads
from stepscope.processor.hardware.machine import Machine
from stepscope.processor.hardware.nvml import Gpus
from stepscope.processor.hardware.other_processes import OtherProcesses
from stepscope.processor.hardware.ports import Ports, rdma_adapters
from stepscope.processor.hardware.proc import Look, ProcessFiles
from stepscope.processor.hardware.quota import Quotas
from stepscope.processor.records.normalise import Rows

LOOK_FROM_RUN_DELAY = 0.2
"""Run delay from which scanning all processes of the host is worth its cost."""
HELD_UP = 0.25
"""A process that a quota stops for so much of the time has no processor time to spare. Its peers
are stopped for 0 to 2 % of the time, and it for 65 to 97 %. Our lab."""
GPU_USERS_SECONDS = 10.0
"""The processes on a GPU hardly change, and listing them costs more than reading a counter."""

_HOST_LEVEL = -1
Sample = tuple[int, str, float]
"""(rank, metric, value)"""


@dataclass
class _Watched:
    """One rank's process and the previous values of its counters."""

    job: str
    rank: int
    process: psutil.Process
    files: ProcessFiles
    comm_threads: CommThreads
    cpu_seconds: float | None = None
    delays_ns: Mapping[str, int] = field(default_factory=dict)
    """By metric."""


@dataclass(frozen=True)
class Sampled:
    """The samples of one moment."""

    host: str
    at_ns: int
    of_host: list[Sample]
    of_ranks: Mapping[str, list[Sample]]
    """By job: two jobs on a host may each have a rank 0."""
    periods_ns: Mapping[str, int] = field(default_factory=dict)
    """The averaging period of the host's metrics that have one."""

    def rows_of(self, job: str) -> Rows:
        """The samples of the host and of a job's own ranks, as rows of `hardware`."""
        samples = [*self.of_host, *self.of_ranks.get(job, ())]
        return {
            "rank": [rank for rank, _, _ in samples],
            "host": [self.host] * len(samples),
            "metric": [metric for _, metric, _ in samples],
            "ts_ns": [self.at_ns] * len(samples),
            "value": [value for _, _, value in samples],
            "period_ns": [self._period_ns(rank, metric) for rank, metric, _ in samples],
        }

    def _period_ns(self, rank: int, metric: str) -> int | None:
        return self.periods_ns.get(metric) if rank == _HOST_LEVEL else None


class HardwareSampler:
    """Samples all watched processes and the host. Not thread-safe: one thread owns it."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._watched: dict[int, _Watched] = {}
        self._stopped: set[int] = set()
        self._held_up: frozenset[int] = frozenset()
        self._machine, self._gpus, self._ports = Machine(), Gpus(), Ports()
        self._quotas = Quotas()
        self._last: float | None = None
        self._looked_at_gpus = -GPU_USERS_SECONDS
        self._other_processes = OtherProcesses(self._family)

    @property
    def gpus(self) -> tuple[str, ...]:
        return self._gpus.names

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        return self._gpus.uuids

    @property
    def stopped(self) -> frozenset[int]:
        """The pids that the last sample found stopped or gone."""
        return frozenset(self._stopped)

    @property
    def held_up(self) -> frozenset[int]:
        """The pids that a quota stopped for much of the time before the last sample."""
        return self._held_up

    def leave_counters(self, gpus: Collection[int]) -> None:
        """Stops reading counters of exactly these GPUs, which CUPTI samples now."""
        self._gpus.leave_counters(gpus)

    def watch(self, job: str, rank: int, pid: int, thread_id: int) -> None:
        self.unwatch(pid)
        try:
            process = psutil.Process(pid)
            files = ProcessFiles(pid, thread_id)
            self._watched[pid] = _Watched(job, rank, process, files, CommThreads(pid))
            self._quotas.watch(pid)
        except (psutil.Error, OSError):
            return

    def unwatch(self, pid: int) -> None:
        watched = self._watched.pop(pid, None)
        if watched is not None:
            watched.files.close()
            watched.comm_threads.close()
        self._quotas.unwatch(pid)
        self._stopped.discard(pid)

    def close(self) -> None:
        for pid in list(self._watched):
            self.unwatch(pid)
        self._machine.close()

    def sample(self) -> Sampled:
        """One sample of everything."""
        now, elapsed, there = time.time_ns(), self._elapsed(), self._users_of_gpus()
        self._quotas.look(elapsed)
        of_gpus = list(self._gpus.sample())
        of_host = [*self._host_samples(elapsed), *self._others_on_gpus(there)]
        of_host += [(_HOST_LEVEL, one.metric, one.value) for one in of_gpus]
        of_ranks = {}
        for pid, watched in self._watched.items():
            of_rank = self._rank_samples(watched, elapsed)
            (self._stopped.add if _has_stopped(of_rank) else self._stopped.discard)(pid)
            of_ranks[pid] = [*_gpu_of(pid, watched.rank, there), *of_rank]
        self._held_up = frozenset(
            pid for pid in self._watched if (self._quotas.throttled(pid) or 0.0) >= HELD_UP
        )
        periods_ns = {one.metric: one.period_ns for one in of_gpus if one.period_ns is not None}
        return Sampled(self._host, now, of_host, self._by_job(of_ranks), periods_ns)

    def sample_stopped(self) -> Sampled:
        """Samples only `proc_stopped`: cheap, and exact at any rate, unlike CPU times in ticks."""
        now = time.time_ns()
        self._stopped = {pid for pid, one in self._watched.items() if _is_stopped(one.files)}
        of_ranks = {pid: [(one.rank, "proc_stopped", float(pid in self._stopped))]
                    for pid, one in self._watched.items()}  # fmt: skip
        return Sampled(self._host, now, [], self._by_job(of_ranks))

    def _by_job(self, of_ranks: Mapping[int, list[Sample]]) -> dict[str, list[Sample]]:
        found: dict[str, list[Sample]] = {}
        for pid, samples in of_ranks.items():
            found.setdefault(self._watched[pid].job, []).extend(samples)
        return found

    def _elapsed(self) -> float:
        now = time.monotonic()
        elapsed = 0.0 if self._last is None else now - self._last
        self._last = now
        return elapsed

    def _host_samples(self, elapsed: float) -> Iterator[Sample]:
        of_machine = self._machine.sample(elapsed)
        for metric, value in (*of_machine, *self._ports.sample()):
            yield _HOST_LEVEL, metric, value

    def _users_of_gpus(self) -> Mapping[int, Set[int]]:
        """The processes on each GPU; empty until `GPU_USERS_SECONDS` have passed."""
        if self._last is None or self._last < self._looked_at_gpus + GPU_USERS_SECONDS:
            return {}
        self._looked_at_gpus = self._last
        return self._gpus.processes()

    def _others_on_gpus(self, there: Mapping[int, Set[int]]) -> Iterator[Sample]:
        """Counts other processes on the ranks' GPUs; none if the driver's pids differ from ours."""
        shared = {index: pids for index, pids in there.items() if pids & self._watched.keys()}
        ours: Collection[int] = ()
        if any(pids - self._watched.keys() for pids in shared.values()):
            ours = self._family()
        for index, pids in shared.items():
            others = set(pids).difference(self._watched, ours)
            yield -1, f"gpu_strangers.gpu{index}", float(len(others))

    def _rank_samples(self, watched: _Watched, elapsed: float) -> list[Sample]:
        rank = watched.rank
        try:
            look = watched.files.look()
            if look.stopped:
                return [(rank, "proc_stopped", 1.0), (rank, "cpu_util", 0.0)]
            cpu = self._cpu_samples(watched, look, elapsed)
            return [(rank, "proc_stopped", 0.0), *self._throttled(watched), *cpu]
        except (psutil.Error, OSError):
            return [(rank, "proc_stopped", 1.0)]

    def _throttled(self, watched: _Watched) -> Iterator[Sample]:
        share = self._quotas.throttled(watched.process.pid)
        if share is not None:
            yield watched.rank, "cpu_throttled", share

    def _cpu_samples(self, watched: _Watched, look: Look, elapsed: float) -> Iterator[Sample]:
        before, watched.cpu_seconds = watched.cpu_seconds, look.cpu_seconds
        delays_before, watched.delays_ns = watched.delays_ns, self._delays_ns(watched, look)
        if elapsed <= 0 or before is None:
            return
        yield watched.rank, "cpu_util", (look.cpu_seconds - before) / elapsed
        for metric in watched.delays_ns.keys() & delays_before.keys():
            waited = (watched.delays_ns[metric] - delays_before[metric]) / 1e9 / elapsed
            yield watched.rank, metric, waited
            if metric == "run_delay" and waited > LOOK_FROM_RUN_DELAY:
                yield from self._other_process_samples(watched)

    def _delays_ns(self, watched: _Watched, look: Look) -> dict[str, int]:
        """How long its threads were runnable without running so far, as far as that is known."""
        delays = {
            "run_delay": watched.files.run_delay_ns(),
            "comm_run_delay": watched.comm_threads.run_delay_ns(look.threads, self._last or 0.0),
        }
        return {metric: ns for metric, ns in delays.items() if ns is not None}

    def _other_process_samples(self, watched: _Watched) -> Iterator[Sample]:
        allowed = set(watched.process.cpu_affinity() or ())
        yield watched.rank, "allowed_cpus", float(len(allowed))
        used = self._other_processes.cores_used(allowed)
        if used is not None:
            yield watched.rank, "stranger_cpu_util", used

    def _family(self) -> set[int]:
        """The pids of the jobs here and of stepscope; all others are other processes."""
        family = {os.getpid()}
        for process in [psutil.Process(), *(w.process for w in self._watched.values())]:
            try:
                family.update(p.pid for p in [*process.parents(), *process.children(True)])
                family.add(process.pid)
            except psutil.Error:
                continue
        return family


def _gpu_of(pid: int, rank: int, there: Mapping[int, Set[int]]) -> Iterator[Sample]:
    on = [index for index, pids in there.items() if pid in pids]
    if len(on) == 1:
        yield rank, "gpu_index", float(on[0])


def _is_stopped(files: ProcessFiles) -> bool:
    try:
        return files.look().stopped
    except OSError:
        return True


def _has_stopped(samples: list[Sample]) -> bool:
    return any(metric == "proc_stopped" and value for _, metric, value in samples)


def adapters() -> tuple[str, ...]:
    """RDMA adapters that are up, as NCCL uses them; else network interfaces without loopback."""
    return rdma_adapters() or _interfaces()


def _interfaces() -> tuple[str, ...]:
    stats = psutil.net_if_stats()
    return tuple(sorted(name for name, stat in stats.items() if stat.isup and name != "lo"))
