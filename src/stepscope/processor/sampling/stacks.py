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
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.processor.records.normalise import Rows
from stepscope.processor.sampling.close import CLOSE_HZ, CloseLook
from stepscope.processor.sampling.recorder import (
    Recorder,
    RecordingError,
    find_py_spy,
    may_exist,
)
from stepscope.processor.sampling.runs import (
    Run,
    clip,
    events_of,
    rows_of,
    runs_of_chrometrace,
    runs_of_dump,
)

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
OWN_THREADS = "stepscope"
"""What the names of our threads in the rank begin with."""


@dataclass(frozen=True)
class Target:
    """A process to sample."""

    job: str
    rank: int
    pid: int


@dataclass
class _Sampled:
    target: Target
    current: Recorder | None = None
    ending: list[Recorder] = field(default_factory=list)
    windows: int = 0
    failed: bool = False
    close: CloseLook | None = None
    """Set while the rank is sampled closely."""
    close_until_ns: int = 0
    closed: list[CloseLook] = field(default_factory=list)
    """Those that have ended and have samples to collect."""

    @property
    def hz(self) -> int:
        return RATE_HZ if self.close is None else CLOSE_HZ

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
        if self._py_spy is not None and may_exist(target.pid):
            self._sampled[target.pid] = _Sampled(target)

    def unwatch(self, pid: int) -> None:
        """Stops sampling a process and collects what its recorder has."""
        sampled = self._sampled.pop(pid, None)
        if sampled is not None:
            self._end_look(sampled)
            self._interrupt(sampled, time.time_ns())
            for recorder in sampled.ending:
                self._collect(sampled, recorder, wait_seconds=2.0)
            for look in sampled.closed:
                self._emit(sampled.target, look.runs())

    def turn(self) -> None:
        """Starts, chains and collects recorders. Call it once a second, and a few times a second
        while recorders are `changing`."""
        now = time.time_ns()
        for sampled in self._sampled.values():
            self._look_closely(sampled, now)
            self._chain(sampled, now)
            for recorder in list(sampled.ending):
                if recorder.is_over:
                    sampled.ending.remove(recorder)
                    self._collect(sampled, recorder)

    def closely(self, pids: Collection[int], until_ns: int) -> None:
        """Samples some ranks at a higher rate until then, with their loader's workers and with the
        holders of the GIL."""
        for pid in pids:
            sampled = self._sampled.get(pid)
            if sampled is not None and not sampled.failed and self._py_spy is not None:
                sampled.close_until_ns = until_ns
                if sampled.close is None:
                    sampled.close = CloseLook(self._py_spy, self._folder, pid)
                    self._rotate(sampled)

    def as_usual(self, pid: int) -> None:
        """Samples a rank at the usual rate again."""
        sampled = self._sampled.get(pid)
        if sampled is not None and self._end_look(sampled):
            self._rotate(sampled)

    @staticmethod
    def _end_look(sampled: _Sampled) -> bool:
        """Ends a closer look; False if there is none."""
        if sampled.close is None:
            return False
        sampled.close.end(time.time_ns())
        sampled.closed.append(sampled.close)
        sampled.close = None
        return True

    def _look_closely(self, sampled: _Sampled, now_ns: int) -> None:
        """Ends a closer look after its time; collects those that have ended."""
        if now_ns >= sampled.close_until_ns and self._end_look(sampled):
            self._rotate(sampled)
        for look in [look for look in sampled.closed if look.is_over]:
            sampled.closed.remove(look)
            self._emit(sampled.target, look.runs())

    def cut(self, job: str) -> None:
        """Ends the current windows of a job now, so that their samples can be read soon."""
        for sampled in self._sampled.values():
            if sampled.target.job == job and not any(r.until_ns is None for r in sampled.ending):
                self._rotate(sampled)

    @property
    def changing(self) -> bool:
        """Whether a recorder is about to start or to end."""
        return any(one.ending or one.close or one.closed or (one.current is None and not one.failed)
                   for one in self._sampled.values())  # fmt: skip

    def busy(self, job: str) -> bool:
        """Whether a recorder of a job is ending and has samples to collect."""
        return any(s.ending or s.closed for s in self._sampled.values() if s.target.job == job)

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
        if current is not None and current.is_over:
            # py-spy exited by itself: it lacks permission, or the process has ended
            current.until_ns, sampled.current = now_ns, None
            sampled.ending.append(current)
            return
        if current is None or now_ns - current.spawned_ns > sampled.window_ns:
            self._rotate(sampled)
        current = sampled.current
        for recorder in sampled.ending:
            if current is None or now_ns >= current.from_ns:
                recorder.end(now_ns if current is None else current.from_ns)

    def _rotate(self, sampled: _Sampled) -> None:
        if sampled.failed or self._py_spy is None:
            return
        overlap = 0 if sampled.current is None else int(OVERLAP_SECONDS * 1e9)
        if sampled.current is not None:
            sampled.ending.append(sampled.current)
        sampled.current = Recorder.start(
            self._py_spy, self._folder, sampled.target.pid, sampled.hz, overlap
        )
        sampled.windows += 1

    def _interrupt(self, sampled: _Sampled, now_ns: int) -> None:
        if sampled.current is not None:
            sampled.ending.append(sampled.current)
            sampled.current = None
        for recorder in sampled.ending:
            recorder.end(now_ns)

    def _collect(self, sampled: _Sampled, recorder: Recorder, wait_seconds: float = 1.0) -> None:
        try:
            data = recorder.read(wait_seconds) or b"[]"
            until = recorder.until_ns or time.time_ns()
            runs = runs_of_chrometrace(events_of(data), recorder.spawned_ns, until)
        except RecordingError as error:
            self._give_up(sampled, str(error))
            return
        except ValueError:
            return  # the recorder was killed while writing: this window is lost
        self._emit(sampled.target, clip(runs, recorder.from_ns, until))

    def _give_up(self, sampled: _Sampled, why: str) -> None:
        if not sampled.failed and may_exist(sampled.target.pid):
            logger.warning(
                "no call stacks of rank %d (pid %d): py-spy reports: %s",
                sampled.target.rank, sampled.target.pid, why,
            )  # fmt: skip
        sampled.failed = True
        sampled.current = None

    def _ask(self, pid: int) -> subprocess.Popen[bytes]:
        command = [str(self._py_spy), "dump", "--pid", str(pid), "--nonblocking", "--json"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def _emit(self, target: Target, runs: Iterable[Run]) -> None:
        kept = [run for run in runs if not run.thread.startswith(OWN_THREADS)]
        if kept:
            self._append(target.job, "stacks", rows_of(target.rank, kept))


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
