"""Samples the ranks' call stacks with py-spy, in windows without gaps.

py-spy writes its samples only when it exits, so windows are chained: the next recorder starts, and
the previous one is interrupted only after the new one has had time for its first sample. Windows
that overlap are cut at the same instant. `--nonblocking` never pauses the rank (py-spy skips torn
samples). `--idle` keeps waiting threads, which are the interesting ones.

Lossy: py-spy spaces its samples randomly around the rate, so a function that runs for less than the
mean interval is sampled in proportion to its time, not every time. Times are the recorder's start
plus py-spy's own clock, accurate to about 0.1 s.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import which
from typing import Any

from stepscope.processor.records.normalise import Rows

logger = logging.getLogger(__name__)

FIRST_WINDOW_SECONDS = 10.0
WINDOW_SECONDS = 30.0
"""Starting a recorder costs 0.06 s of CPU (measured): 0.2 % of a core per rank at this length."""
OVERLAP_SECONDS = 0.4
"""Four times the 0.05 to 0.1 s that a recorder needs for its first sample on an idle machine."""
SNAPSHOT_SECONDS = 5.0
"""After this time the process is taken to be unreadable."""
RATE_HZ = 10
"""Costs about 0.4 % of a core per rank (5 threads, measured); 20 Hz costs 0.6 %."""
OWN_THREAD = "stepscope-sender"


@dataclass(frozen=True)
class Target:
    """A process to sample."""

    job: str
    rank: int
    pid: int


@dataclass(frozen=True)
class Run:
    """Consecutive identical samples of one thread."""

    thread: str
    start_ns: int
    duration_ns: int
    frames: str
    active: bool | None = None
    gil: bool | None = None


@dataclass
class _Recorder:
    process: subprocess.Popen[bytes]
    path: Path
    spawned_ns: int
    from_ns: int
    until_ns: int | None = None


@dataclass
class _Sampled:
    target: Target
    current: _Recorder | None = None
    ending: list[_Recorder] = field(default_factory=list)
    windows: int = 0
    failed: bool = False

    @property
    def window_ns(self) -> int:
        """The window's length; the first is short, so that a new job has stacks soon."""
        return int((FIRST_WINDOW_SECONDS if self.windows == 1 else WINDOW_SECONDS) * 1e9)


class StackSampler:
    """Keeps one recorder per process running. Not thread-safe: one thread owns it."""

    def __init__(self, append: Callable[[str, str, Rows], None]) -> None:
        self._append = append
        self._sampled: dict[int, _Sampled] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="stepscope-stacks-"))
        self._py_spy = find_py_spy()
        if self._py_spy is None:
            logger.warning("py-spy is not installed: no call stacks; `pip install py-spy`")

    def watch(self, target: Target) -> None:
        """Starts sampling a process; ignores one that does not exist (a simulated rank)."""
        if self._py_spy is not None and _may_exist(target.pid):
            self._sampled[target.pid] = _Sampled(target)

    def unwatch(self, pid: int) -> None:
        """Stops sampling a process and collects what its recorder has."""
        sampled = self._sampled.pop(pid, None)
        if sampled is not None:
            self._interrupt(sampled, time.time_ns())
            for recorder in sampled.ending:
                self._collect(sampled, recorder, wait_seconds=2.0)

    def turn(self) -> None:
        """Starts, chains and collects recorders. Call it once a second, and a few times a second
        while recorders are `changing`."""
        now = time.time_ns()
        for sampled in self._sampled.values():
            self._chain(sampled, now)
            for recorder in list(sampled.ending):
                if recorder.process.poll() is not None:
                    sampled.ending.remove(recorder)
                    self._collect(sampled, recorder)

    def cut(self, job: str) -> None:
        """Ends the current windows of a job now, so that their samples can be read soon."""
        for sampled in self._sampled.values():
            if sampled.target.job == job and not any(r.until_ns is None for r in sampled.ending):
                self._rotate(sampled)

    @property
    def changing(self) -> bool:
        """Whether a recorder is about to start or to end."""
        return any(one.ending or (one.current is None and not one.failed)
                   for one in self._sampled.values())  # fmt: skip

    def busy(self, job: str) -> bool:
        """Whether a recorder of a job is ending and has samples to collect."""
        return any(s.ending for s in self._sampled.values() if s.target.job == job)

    def dump(self, job: str, only: frozenset[int] | None = None) -> None:
        """Takes one snapshot now of every process of a job, or of `only` some pids."""
        targets = [s.target for s in self._sampled.values() if s.target.job == job]
        asked = [(target, time.time_ns(), self._ask(target.pid))
                 for target in targets if only is None or target.pid in only]  # fmt: skip
        for target, now, looking in asked:
            self._emit(target, _snapshot(looking, now))

    def close(self) -> None:
        for pid in list(self._sampled):
            self.unwatch(pid)
        for left in self._folder.iterdir():
            left.unlink()
        self._folder.rmdir()

    def _chain(self, sampled: _Sampled, now_ns: int) -> None:
        current = sampled.current
        if current is not None and current.process.poll() is not None:
            # py-spy exited by itself: it lacks permission, or the process has ended
            current.until_ns, sampled.current = now_ns, None
            sampled.ending.append(current)
            return
        if current is None or now_ns - current.spawned_ns > sampled.window_ns:
            self._rotate(sampled)
        current = sampled.current
        for recorder in sampled.ending:
            if current is None or now_ns >= current.from_ns:
                self._end(recorder, now_ns if current is None else current.from_ns)

    def _rotate(self, sampled: _Sampled) -> None:
        if sampled.failed:
            return
        overlap = 0 if sampled.current is None else int(OVERLAP_SECONDS * 1e9)
        if sampled.current is not None:
            sampled.ending.append(sampled.current)
        sampled.current = self._start(sampled.target.pid, overlap)
        sampled.windows += 1

    def _start(self, pid: int, overlap_ns: int) -> _Recorder:
        now = time.time_ns()
        path = self._folder / f"{pid}-{now}.json"
        command = [
            str(self._py_spy), "record", "--pid", str(pid), "--nonblocking", "--idle", "--threads",
            "--rate", str(RATE_HZ), "--duration", "3600", "--format", "chrometrace",
            "--output", str(path),
        ]  # fmt: skip
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        return _Recorder(process, path, now, now + overlap_ns)

    def _interrupt(self, sampled: _Sampled, now_ns: int) -> None:
        if sampled.current is not None:
            sampled.ending.append(sampled.current)
            sampled.current = None
        for recorder in sampled.ending:
            self._end(recorder, now_ns)

    @staticmethod
    def _end(recorder: _Recorder, until_ns: int) -> None:
        if recorder.until_ns is None:
            recorder.until_ns = until_ns
            if recorder.process.poll() is None:
                recorder.process.send_signal(signal.SIGINT)

    def _collect(self, sampled: _Sampled, recorder: _Recorder, wait_seconds: float = 0.0) -> None:
        try:
            _, errors = recorder.process.communicate(timeout=wait_seconds or 1.0)
        except subprocess.TimeoutExpired:
            recorder.process.kill()
            return
        if not recorder.path.exists():
            if recorder.process.returncode not in {0, -signal.SIGINT}:
                self._give_up(sampled, errors)
            return
        try:
            events = json.loads(recorder.path.read_bytes())
        except ValueError:
            return  # the recorder was killed while writing: this window is lost
        finally:
            recorder.path.unlink()
        until = recorder.until_ns or time.time_ns()
        runs = runs_of_chrometrace(events, recorder.spawned_ns, until)
        self._emit(sampled.target, clip(runs, recorder.from_ns, until))

    def _give_up(self, sampled: _Sampled, errors: bytes) -> None:
        if not sampled.failed and _may_exist(sampled.target.pid):
            why = errors.decode(errors="replace").strip().splitlines() or ["no output"]
            logger.warning(
                "no call stacks of rank %d (pid %d): py-spy reports: %s",
                sampled.target.rank, sampled.target.pid, why[0],
            )  # fmt: skip
        sampled.failed = True
        sampled.current = None

    def _ask(self, pid: int) -> subprocess.Popen[bytes]:
        command = [str(self._py_spy), "dump", "--pid", str(pid), "--nonblocking", "--json"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def _emit(self, target: Target, runs: Iterable[Run]) -> None:
        kept = [run for run in runs if run.thread != OWN_THREAD]
        if kept:
            self._append(target.job, "stacks", _rows(target.rank, kept))


def _snapshot(looking: subprocess.Popen[bytes], now_ns: int) -> list[Run]:
    """The stacks of a `py-spy dump` that began at `now_ns`; none if it lacks permission."""
    try:
        said, _ = looking.communicate(timeout=SNAPSHOT_SECONDS)
        return runs_of_dump(json.loads(said), now_ns)
    except subprocess.TimeoutExpired:
        looking.kill()
        looking.communicate()
    except ValueError:
        pass  # the process is ending, or py-spy lacks permission: `record` has reported it
    return []


def find_py_spy() -> str | None:
    """The path of py-spy: next to our own interpreter, else the one in PATH."""
    beside = Path(sysconfig.get_path("scripts")) / "py-spy"
    return str(beside) if beside.exists() else which("py-spy")


def runs_of_chrometrace(events: list[dict[str, Any]], spawned_ns: int, end_ns: int) -> list[Run]:
    """Converts py-spy's begin and end events into runs of identical samples.

    Args:
        events: py-spy's output; `ts` are microseconds since the recorder's start.
        spawned_ns: wall-clock time of that start.
        end_ns: when the recorder was stopped; the last run of each thread ends there.
    """
    runs: list[Run] = []
    for thread_events in _by_thread(events).values():
        runs += _runs_of_thread(thread_events, spawned_ns, end_ns)
    return runs


def clip(runs: Iterable[Run], from_ns: int, until_ns: int) -> list[Run]:
    """The parts of the runs that lie within a window."""
    out = []
    for run in runs:
        start = max(run.start_ns, from_ns)
        end = min(run.start_ns + run.duration_ns, until_ns)
        if end > start:
            out.append(replace(run, start_ns=start, duration_ns=end - start))
    return out


def runs_of_dump(threads: list[dict[str, Any]], now_ns: int) -> list[Run]:
    """Converts `py-spy dump --json` into one run of no duration per thread."""
    return [
        Run(
            thread=str(thread.get("thread_name") or thread["thread_id"]),
            start_ns=now_ns,
            duration_ns=0,
            frames=";".join(
                _frame(frame["name"], frame["filename"], frame["line"])
                for frame in reversed(thread["frames"])
            ),
            active=bool(thread["active"]),
            gil=bool(thread["owns_gil"]),
        )
        for thread in threads
    ]


def _by_thread(events: list[dict[str, Any]]) -> dict[Any, list[dict[str, Any]]]:
    threads: dict[Any, list[dict[str, Any]]] = {}
    for event in events:
        threads.setdefault(event["tid"], []).append(event)
    return threads


def _runs_of_thread(events: list[dict[str, Any]], spawned_ns: int, end_ns: int) -> list[Run]:
    runs: list[Run] = []
    stack: list[str] = []
    thread = "?"
    since = 0
    for event in events:
        at = int(event["ts"])
        if at > since and len(stack) > 0:
            runs.append(_run(thread, stack, spawned_ns + since * 1000, spawned_ns + at * 1000))
        since = at
        if event["ph"] == "E":
            stack.pop()
        elif event["name"].startswith("thread ("):
            thread = event["name"].partition("): ")[2] or event["name"]
            stack.append("")
        else:
            arguments = event["args"]
            stack.append(_frame(event["name"], arguments["filename"], arguments["line"]))
    last = spawned_ns + since * 1000
    if stack and end_ns > last:
        runs.append(_run(thread, stack, last, end_ns))
    return [run for run in runs if run.frames]


def _run(thread: str, stack: list[str], start_ns: int, end_ns: int) -> Run:
    return Run(thread, start_ns, end_ns - start_ns, ";".join(frame for frame in stack if frame))


def _frame(function: str, file: str, line: int) -> str:
    return f"{function} ({file}:{line})".replace(";", ",")


def _rows(rank: int, runs: list[Run]) -> Rows:
    return {
        "rank": [rank] * len(runs),
        "thread": [run.thread for run in runs],
        "start_ns": [run.start_ns for run in runs],
        "duration_ns": [run.duration_ns for run in runs],
        "frames": [run.frames for run in runs],
        "active": [run.active for run in runs],
        "gil": [run.gil for run in runs],
    }


def _may_exist(pid: int) -> bool:
    """False only if there is no such process; one of another user counts as existing."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True
