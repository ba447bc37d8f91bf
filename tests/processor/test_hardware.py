"""Counters of real processes, and of the host they run on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from stepscope.processor.hardware.sampler import HardwareSampler
from stepscope.processor.records.normalise import Rows

_BURN = "while True: sum(range(1000))"
_SLEEP = "import time; time.sleep(600)"
BURNING, SLEEPING, STOPPED = 1, 2, 3
JOB = "job"


@pytest.fixture
def processes() -> Iterator[dict[int, subprocess.Popen[bytes]]]:
    code = {BURNING: _BURN, SLEEPING: _SLEEP, STOPPED: _BURN}
    running = {r: subprocess.Popen([sys.executable, "-c", text]) for r, text in code.items()}
    running[STOPPED].send_signal(signal.SIGSTOP)
    os.waitpid(running[STOPPED].pid, os.WUNTRACED)  # until it has stopped
    yield running
    for process in running.values():
        process.kill()
        process.wait()


def _values(rows: Rows, rank: int) -> dict[str, float]:
    return {
        metric: value
        for r, metric, value in zip(rows["rank"], rows["metric"], rows["value"], strict=True)
        if r == rank
    }


def _cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def test_ranks_seen_from_outside(processes: dict[int, subprocess.Popen[bytes]]) -> None:
    """How busy the machine is otherwise does not matter: it waits for half a second of CPU."""
    sampler = HardwareSampler("host-0")
    for rank, process in processes.items():
        sampler.watch(JOB, rank, process.pid, process.pid)
    burning = processes[BURNING].pid
    while _cpu_seconds(burning) < 0.2:
        time.sleep(0.01)
    began, before = time.monotonic(), _cpu_seconds(burning)
    sampler.sample()
    sampled, used = time.monotonic(), _cpu_seconds(burning)
    while _cpu_seconds(burning) < used + 0.5:
        time.sleep(0.01)
    at_least, until = _cpu_seconds(burning) - used, time.monotonic()
    rows = sampler.sample().rows_of(JOB)
    at_most, ended = _cpu_seconds(burning) - before, time.monotonic()

    cores = _values(rows, BURNING)["cpu_util"]
    assert at_least / (ended - began) <= cores <= at_most / (until - sampled)
    assert _values(rows, BURNING)["cpu_util"] + _values(rows, BURNING)["run_delay"] > 0.5
    assert _values(rows, SLEEPING)["cpu_util"] < 0.3
    stopped = {rank: _values(rows, rank)["proc_stopped"] for rank in processes}
    assert stopped == {BURNING: 0.0, SLEEPING: 0.0, STOPPED: 1.0}

    pulse, halted = sampler.sample_stopped().rows_of(JOB), frozenset({processes[STOPPED].pid})
    assert [_values(pulse, rank) for rank in stopped] == [
        {"proc_stopped": value} for value in stopped.values()
    ]
    assert sampler.stopped == halted


def test_a_thread_that_moves_data_waits_for_a_processor() -> None:
    """It shares one with another process; its main thread only waits for it to end."""
    name = "open(f'/proc/self/task/{t.get_native_id()}/comm', 'w').write('gloo_tcp_loop')"
    work = f"def f():\n  {name}; print(flush=True)\n  while True: sum(range(1000))"
    code = f"import threading as t\n{work}\nt.Thread(target=f).start()"
    only = {min(os.sched_getaffinity(0))}
    with (
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as moving,
        subprocess.Popen([sys.executable, "-c", _BURN]) as burning,
    ):
        try:
            assert moving.stdout is not None and moving.stdout.readline()
            sampler = HardwareSampler("host-0")
            rows = sampler.sample().rows_of(JOB)
            for rank, one in ((0, moving), (1, burning)):
                for thread in psutil.Process(one.pid).threads():
                    os.sched_setaffinity(thread.id, only)
                sampler.watch(JOB, rank, one.pid, one.pid)
            while _values(rows, 0).get("comm_run_delay", 0.0) < 0.2:
                time.sleep(0.1)
                rows = sampler.sample().rows_of(JOB)
            assert _values(rows, 0)["run_delay"] < 0.1
            assert "comm_run_delay" not in _values(rows, 1)
        finally:
            moving.kill()
            burning.kill()


def test_the_host() -> None:
    sampler = HardwareSampler("host-0")
    sampler.sample()
    time.sleep(0.05)
    rows = sampler.sample().rows_of(JOB)
    host = _values(rows, -1)

    assert set(rows["host"]) == {"host-0"} and len(set(rows["ts_ns"])) == 1
    assert 0 <= host["cpu_util"] <= 1
    cores = [value for metric, value in host.items() if metric.startswith("cpu_util.core")]
    assert len(cores) == psutil.cpu_count()
    assert host["mem_available_bytes"] > 0
    assert host["nic_rx_bytes_per_s"] >= 0 and host["nic_tx_bytes_per_s"] >= 0


def test_a_rank_that_died_is_stopped() -> None:
    sampler = HardwareSampler("host-0")
    process = subprocess.Popen([sys.executable, "-c", _SLEEP])
    sampler.watch(JOB, 0, process.pid, process.pid)
    process.kill()
    process.wait()
    assert _values(sampler.sample().rows_of(JOB), 0) == {"proc_stopped": 1.0}

    sampler.unwatch(process.pid)
    assert _values(sampler.sample().rows_of(JOB), 0) == {}


def test_a_rank_that_never_was() -> None:
    sampler = HardwareSampler("host-0")
    process = subprocess.Popen(["true"])
    process.wait()
    sampler.watch(JOB, 0, process.pid, process.pid)

    assert _values(sampler.sample().rows_of(JOB), 0) == {}


def test_jobs_that_share_a_host_get_samples_of_their_own_ranks_only(
    processes: dict[int, subprocess.Popen[bytes]],
) -> None:
    """Each has a rank 0, and one of the two is stopped."""
    sampler = HardwareSampler("host-0")
    for job, process in (("one", processes[SLEEPING]), ("two", processes[STOPPED])):
        sampler.watch(job, 0, process.pid, process.pid)
    for looked in (sampler.sample(), sampler.sample_stopped()):
        states = [_states(looked.rows_of(job)) for job in ("one", "two")]
        assert states == [[0.0], [1.0]]


def _states(rows: Rows) -> list[float]:
    told = zip(rows["metric"], rows["value"], strict=True)
    return [value for metric, value in told if metric == "proc_stopped"]
