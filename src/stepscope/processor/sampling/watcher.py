"""Samples the ranks from outside, on its own thread: hardware counters and call stacks."""

from __future__ import annotations

import contextlib
import logging
import queue
import resource
import threading
import time
from collections.abc import Callable, Collection

from stepscope.processor.hardware.sampler import HardwareSampler
from stepscope.processor.instructions import Unwatch, Watch
from stepscope.processor.records.normalise import Rows
from stepscope.processor.sampling.stacks import StackSampler, Target
from stepscope.processor.settings import Settings

logger = logging.getLogger(__name__)

TURN_SECONDS = 0.2
"""Between two turns while stack recorders start or end; otherwise the next turn is when
counters are due."""
SHORTEST_SAMPLE_SECONDS = 0.25
"""CPU times count in ticks of 10 ms: a rate over less time than this is mostly rounding."""
DUMP_SECONDS = 2.0
"""How often stacks are dumped while a job is stalled."""


class OutsideWatcher:
    """Owns the samplers; other threads only put requests in its queue."""

    def __init__(
        self, host: str, settings: Settings, append: Callable[[str, str, Rows], None]
    ) -> None:
        self._host = host
        self._settings = settings
        self._append = append
        self._requests: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._hardware = HardwareSampler(host)
        self._stacks = StackSampler(append) if settings.sample_stacks else None
        self._jobs: dict[int, str] = {}
        self._dumped: dict[str, float] = {}
        self._sampled = 0.0
        self._turn_at = 0.0
        self._cpu = _own_cpu_seconds()
        self._finishing: list[tuple[str, threading.Event]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stepscope-outside", daemon=True)
        self._thread.start()

    @property
    def gpus(self) -> tuple[str, ...]:
        return self._hardware.gpus

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        return self._hardware.gpu_uuids

    @property
    def held_up(self) -> frozenset[int]:
        """The ranks that a quota stops for much of the time."""
        return self._hardware.held_up

    def watch(self, who: Watch) -> None:
        self._requests.put(lambda: self._watch(who))

    def unwatch(self, who: Unwatch) -> None:
        self._requests.put(lambda: self._unwatch(who))

    def process_stopped(self) -> None:
        """A process has stopped: finds which, and dumps its stacks."""
        self._requests.put(self._sample_stopped)

    def stalled(self, job: str) -> None:
        """A job has stalled: samples it immediately."""
        self._requests.put(lambda: self._look_at_once(job))

    def closely(self, pids: Collection[int], seconds: float) -> None:
        """A window of profiling begins soon: samples stacks of some ranks, of their loaders'
        workers and of the holders of the GIL at a higher rate, for at most this long."""
        until_ns = time.time_ns() + int(seconds * 1e9)
        self._requests.put(lambda: self._closely(pids, until_ns))

    def as_usual(self, pid: int) -> None:
        """A rank's window is over."""
        self._requests.put(lambda: self._as_usual(pid))

    def leave_counters(self, gpus: frozenset[int]) -> None:
        """Stops reading counters of exactly these GPUs, which CUPTI samples now."""
        self._requests.put(lambda: self._hardware.leave_counters(gpus))

    def finish(self, job: str, timeout: float) -> None:
        """Collects the stacks that py-spy has not written yet; waits up to `timeout` seconds."""
        done = threading.Event()
        self._requests.put(lambda: self._finish(job, done))
        done.wait(timeout)

    def close(self) -> None:
        self._stop.set()
        self._requests.put(lambda: None)
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._answer(max(0.0, self._turn_at - time.monotonic()))
                if time.monotonic() >= self._turn_at:
                    self._turn_at = time.monotonic() + TURN_SECONDS
                    self._turn()
                    self._turn_at = self._next_turn(time.monotonic())
            except OSError as error:  # a process ended in between
                logger.debug("sampling failed: %s", error)
        if self._stacks is not None:
            self._stacks.close()
        self._hardware.close()

    def _answer(self, seconds: float) -> None:
        """Handles all queued requests; waits up to `seconds` for the first."""
        with contextlib.suppress(queue.Empty):
            self._requests.get(timeout=seconds)()
            while True:
                self._requests.get_nowait()()

    def _turn(self) -> None:
        if self._stacks is not None:
            self._stacks.turn()
        self._finish_waiting()
        if self._jobs and time.monotonic() - self._sampled >= self._settings.hardware_seconds:
            self._sample()

    def _next_turn(self, now: float) -> float:
        if self._finishing or (self._stacks is not None and self._stacks.changing):
            return now + TURN_SECONDS
        sampled = self._sampled if self._jobs else now
        return max(now + TURN_SECONDS, sampled + self._settings.hardware_seconds)

    def _watch(self, who: Watch) -> None:
        self._turn_at = 0.0
        self._jobs[who.pid] = who.job
        self._hardware.watch(who.job, who.rank, who.pid, who.thread_id)
        if self._stacks is not None:
            self._stacks.watch(Target(who.job, who.rank, who.pid))

    def _unwatch(self, who: Unwatch) -> None:
        self._sample()
        self._jobs.pop(who.pid, None)
        self._hardware.unwatch(who.pid)
        if self._stacks is not None:
            self._stacks.unwatch(who.pid)

    def _closely(self, pids: Collection[int], until_ns: int) -> None:
        self._turn_at = 0.0
        if self._stacks is not None:
            self._stacks.closely(pids, until_ns)

    def _as_usual(self, pid: int) -> None:
        self._turn_at = 0.0
        if self._stacks is not None:
            self._stacks.as_usual(pid)

    def _look_at_once(self, job: str) -> None:
        now = time.monotonic()
        if now - self._sampled < SHORTEST_SAMPLE_SECONDS:
            self._sample_stopped()
        else:
            self._sample()
        if self._stacks is not None and now - self._dumped.get(job, 0.0) >= DUMP_SECONDS:
            self._dumped[job] = now
            self._stacks.dump(job)

    def _finish(self, job: str, done: threading.Event) -> None:
        self._sample()
        if self._stacks is not None:
            self._stacks.cut(job)
        self._finishing.append((job, done))
        self._turn_at = 0.0

    def _finish_waiting(self) -> None:
        for job, done in list(self._finishing):
            if self._stacks is None or not self._stacks.busy(job):
                done.set()
                self._finishing.remove((job, done))

    def _sample(self) -> None:
        """Samples counters for every job here; each gets those of the host and its own ranks."""
        now = time.monotonic()
        if now - self._sampled < SHORTEST_SAMPLE_SECONDS:
            return
        halted = self._hardware.stopped
        sampled = self._hardware.sample()
        self._dump_stacks(self._hardware.stopped - halted)
        own = self._own_cost(now)
        self._sampled = now
        for job in set(self._jobs.values()):
            self._append(job, "hardware", sampled.rows_of(job))
            self._append(job, "hardware", own)

    def _sample_stopped(self) -> None:
        halted = self._hardware.stopped
        looked = self._hardware.sample_stopped()
        self._dump_stacks(self._hardware.stopped - halted)
        for job in set(self._jobs.values()):
            self._append(job, "hardware", looked.rows_of(job))

    def _dump_stacks(self, newly_stopped: frozenset[int]) -> None:
        """Dumps stacks before a stopped process is reported, so that readers find them."""
        if self._stacks is not None:
            for job in {self._jobs[pid] for pid in newly_stopped if pid in self._jobs}:
                self._dumped[job] = time.monotonic()
                self._stacks.dump(job, newly_stopped)

    def _own_cost(self, now: float) -> Rows:
        """The cores that the processor and its child processes used since the last sample."""
        cpu, before = _own_cpu_seconds(), self._cpu
        self._cpu = cpu
        elapsed = now - self._sampled if self._sampled else float("inf")
        return {
            "rank": [-1],
            "host": [self._host],
            "metric": ["stepscope_processor_cpu"],
            "ts_ns": [time.time_ns()],
            "value": [(cpu - before) / elapsed],
        }


def _own_cpu_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
