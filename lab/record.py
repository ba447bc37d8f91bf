"""Runs one case: every host under its own `stepscope run`, and faults at their steps."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

from lab.faults import Fault
from lab.hosts import RANK_NICE, Cluster, Host, kill_tree
from lab.scenarios import Case
from lab.shapes import Job

ROOT = Path(__file__).resolve().parent.parent
LAUNCHER = ROOT / "tests" / "real" / "launch.py"
SCRIPTS = ROOT / "lab" / "jobs"

HANG_SECONDS = 15.0
"""How long a job that hangs is left so: long enough for a live report, as a scheduler would."""
LIMIT_SECONDS = 300.0
"""Nothing here takes that long."""
_BUSY = "while True: sum(range(10000))"


class FailedError(Exception):
    """A job that did not do what its scenario says."""


@dataclass
class Running:
    """A job under way, and what faults can do to it from outside (`lab.faults.Machine`)."""

    cluster: Cluster
    job: Job
    output: IO[bytes]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    others: dict[int, list[subprocess.Popen[bytes]]] = field(default_factory=dict)

    def set_rate(self, host: int, mbit: float) -> None:
        self.cluster.set_rate(self._host(host), mbit)

    def lose_packets(self, host: int, share: float) -> None:
        self.cluster.lose_packets(self._host(host), share)

    def set_quota(self, host: int, processors: float) -> None:
        limited = self._host(host)
        limited.groups.set_quota(limited.name, processors)

    def start_others(self, host: int, processes: int) -> None:
        """As important to the kernel as the ranks are, like on a host where nobody is nice."""
        command = ["nice", "-n", str(RANK_NICE), sys.executable, "-c", _BUSY]
        self.others[host] = [
            self._host(host).start(command, os.environ, self.output) for _ in range(processes)
        ]

    def restore(self, host: int) -> None:
        """Other processes first: what else it takes needs a processor."""
        for process in self.others.pop(host, []):
            for inside in psutil.Process(process.pid).children():
                inside.kill()
            kill_tree(process)
        self.cluster.restore(self._host(host))

    def send_signal(self, rank: int, number: int) -> None:
        self._rank(rank).send_signal(number)

    def end(self) -> None:
        """As a scheduler ends a job: SIGTERM for the command that it started on each host."""
        for process in self.processes:
            for command in psutil.Process(process.pid).children():
                command.send_signal(signal.SIGTERM)

    def ended(self) -> bool:
        return all(process.poll() is not None for process in self.processes)

    def _host(self, number: int) -> Host:
        return self.cluster.hosts[number]

    def _rank(self, rank: int) -> psutil.Process:
        host = self.job.host_of(rank)
        family = psutil.Process(self.processes[host].pid).children(recursive=True)
        launcher = next(p for p in family if _is_launcher(p))
        ranks = sorted(launcher.children(), key=lambda process: process.pid)
        return ranks[rank - self.job.ranks_on(host)[0]]


def _is_launcher(process: psutil.Process) -> bool:
    line = process.cmdline()
    return str(LAUNCHER) in line and "stepscope.cli" not in line


def record(case: Case, out: Path, *options: str) -> Path:
    """Records a case into `out`; gives its folder, with `job/`, `steps.csv` and `host-*.log`."""
    folder = out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    conditions = [row for fault in case.faults for row in fault.conditions()]
    (folder / "conditions.json").write_text(json.dumps(conditions, indent=1))
    with (folder / "output.log").open("wb") as output, ExitStack() as stack:
        cluster = stack.enter_context(
            Cluster(case.job.hosts, case.job.rate_mbit, case.job.clocks_ms)
        )
        running = Running(cluster, case.job, output)
        stack.enter_context(_ending(running))
        _start(running, case, folder, options)
        with _preferred():
            _attend(running, case, folder / "steps.csv")
    return folder


def _start(running: Running, case: Case, folder: Path, options: tuple[str, ...]) -> None:
    job = case.job
    command = [
        sys.executable, "-m", "stepscope.cli", "run", "--no-traces", "--store", str(folder),
        "--job", "job", *options, "--", "nice", "-n", str(RANK_NICE), sys.executable, str(LAUNCHER),
        "--fork", str(job.per_host), str(SCRIPTS / job.script), *job.arguments(case.seed),
    ]  # fmt: skip
    for number, host in enumerate(running.cluster.hosts):
        environment = _environment(job, folder, number)
        running.processes.append(host.start(command, environment, running.output))


def _environment(job: Job, folder: Path, host: int) -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(job.world), "FIRST_RANK": str(host * job.per_host),
        "MASTER_ADDR": "host-0", "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth0",
        "XDG_STATE_HOME": str(folder),
        "LAB_CONDITIONS": str(folder / "conditions.json"), "LAB_STEPS": str(folder / "steps.csv"),
    }  # fmt: skip


@contextmanager
def _ending(running: Running) -> Iterator[None]:
    try:
        yield
    finally:
        for process in running.processes:
            kill_tree(process)


def _attend(running: Running, case: Case, steps: Path) -> None:
    """Until the job has ended, begins and ends faults when rank 0 comes to their steps."""
    waiting = list(case.faults)
    begun: list[Fault] = []
    until = time.monotonic() + LIMIT_SECONDS
    hang = any(fault.hangs for fault in case.faults)
    ending = False
    while not running.ended():
        if time.monotonic() > until:
            raise FailedError(f"{case.name}: not over after {LIMIT_SECONDS:.0f} s; see output.log")
        step, age = progress(steps)
        for fault in [f for f in waiting if step >= f.when.first]:
            fault.begin(running)
            waiting.remove(fault)
            begun.append(fault)
        for fault in [f for f in begun if f.when.last is not None and step > f.when.last]:
            fault.end(running)
            begun.remove(fault)
        if hang and not ending and step > 0 and age > HANG_SECONDS:
            running.end()
            ending = True
        time.sleep(0.01)
    if not hang and progress(steps)[0] < case.job.steps:
        statuses = [process.returncode for process in running.processes]
        raise FailedError(f"{case.name}: exit statuses {statuses}; see output.log")
    if b"internal error" in (steps.parent / "output.log").read_bytes():
        print("stepscope failed, see output.log; ", end="", flush=True)


@contextmanager
def _preferred() -> Iterator[None]:
    """Runs this process, which mostly sleeps, before those of hosts: beside seven that compute it
    noticed 24 s too late that their steps were over. What it starts is not preferred."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    with suppress(OSError):
        at_once = os.SCHED_RR | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, at_once, os.sched_param(1))
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setscheduler(0, policy, parameters)


def progress(steps: Path) -> tuple[int, float]:
    """The step that rank 0 is in (-1: before the first), and for how many seconds."""
    try:
        with steps.open("rb") as file:
            file.seek(max(0, steps.stat().st_size - 200))
            lines = file.read().splitlines()
        age = time.time() - steps.stat().st_mtime
    except OSError:
        return -1, 0.0
    complete = lines[-1].decode().split(",") if lines else []
    return (int(complete[0]) + 1 if complete[:1] else 0), age
