"""Notices at once when the process of a rank ends, and finds out how.

A process that exits stays a zombie until its parent has read its status; until then, the kernel
shows the status to us as well (proc(5), field 52 of `stat`). Its pidfd becomes readable at that
moment. Where the parent is faster, the status is known only if it reports it (`Exited`).

Lossy: nobody looks while no processor runs.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from stepscope.processor.hardware.proc import open_stat, read_stat
from stepscope.processor.instructions import Exited, Left, Unwatch, Watch
from stepscope.processor.records.normalise import Rows
from stepscope.processor.sampling.out_of_memory import KernelLog, OomKills

_EXIT_CODE = 49
"""Field of `stat` after the name: `exit_code`, as waitpid(2) gives it."""
_ENDED = b"ZXx"
"""Zombie or dead."""
_PATIENT_SECONDS = 1.0
"""How long a row waits for the parent's report, or for the end of the connection, which a forked
child may hold. `stepscope run` reports within milliseconds."""
OUT_OF_MEMORY, EXCEPTION = "out of memory", "exception"


@dataclass
class _Process:
    """One process of a rank that has not been reported yet."""

    watch: Watch
    stat: int | None
    pidfd: int | None
    oom: OomKills
    announced: bool = False
    error: str | None = None
    frames: tuple[str, ...] = ()
    hung_up: bool = False
    left_ns: int | None = None
    """Its first sign of ending, by the wall clock."""
    gone_at: float | None = None
    wait_status: int | None = None

    def close(self) -> None:
        for file in (self.stat, self.pidfd):
            if file is not None:
                os.close(file)


@dataclass
class Exits:
    """The processes of all ranks; `look` returns rows of `exits` for those that have ended."""

    clock: Callable[[], float] = time.monotonic
    wall_ns: Callable[[], int] = time.time_ns
    _processes: dict[tuple[str, int], _Process] = field(default_factory=dict)
    _log: KernelLog = field(default_factory=KernelLog)
    _wakers: select.epoll = field(default_factory=select.epoll)

    def wait(self, descriptors: Collection[int], seconds: float) -> None:
        """Waits until a process ends, one of the descriptors is readable, or for these seconds."""
        poll = select.poll()
        for descriptor in (self._wakers.fileno(), *descriptors):
            poll.register(descriptor, select.POLLIN)
        poll.poll(seconds * 1e3)

    def watch(self, it: Watch) -> None:
        key = (it.job, it.pid)
        if key in self._processes:  # it connected again
            self._processes[key].hung_up = False
            return
        process = _Process(it, *_opened(it.pid), OomKills(it.pid))
        if process.pidfd is not None:
            self._wakers.register(process.pidfd, select.EPOLLIN)
        self._processes[key] = process

    def announced(self, it: Left) -> None:
        """A process is about to end by itself."""
        process = self._processes.get((it.job, it.pid))
        if process is not None:
            process.announced, process.error, process.frames = True, it.error, it.frames
            process.left_ns = process.left_ns or self.wall_ns()

    def hung_up(self, it: Unwatch) -> None:
        """A process has closed its connection."""
        process = self._processes.get((it.job, it.pid))
        if process is not None:
            process.hung_up = True
            if process.stat is None and process.gone_at is None:
                self._mark(process)  # not visible from here, so its connection is all there is

    def reported(self, it: Exited) -> None:
        """Its parent knows how a process ended."""
        for process in self._processes.values():
            if process.watch.pid == it.pid and process.wait_status is None:
                code = it.returncode
                process.wait_status = -code if code < 0 else code << 8
                self._mark(process)

    def look(self, *, at_once: bool = False) -> Iterator[tuple[str, Rows]]:
        """The job and the row of each process that has ended since; waits for no more reports if
        they are wanted at once."""
        ready = {descriptor for descriptor, _ in self._wakers.poll(0)}
        for process in self._processes.values():
            if process.gone_at is None and (process.pidfd in ready or _has_ended(process)):
                self._mark(process)
        for key, process in list(self._processes.items()):
            if process.gone_at is not None and (at_once or self._is_complete(process)):
                del self._processes[key]
                yield process.watch.job, self._row(process)
                process.close()

    def close(self) -> None:
        for process in self._processes.values():
            process.close()
        self._processes.clear()
        self._wakers.close()
        self._log.close()

    def _mark(self, process: _Process) -> None:
        process.gone_at = self.clock()
        process.left_ns = process.left_ns or self.wall_ns()
        process.wait_status = process.wait_status or _wait_status(process.stat)
        if process.pidfd is not None:
            with contextlib.suppress(OSError):
                self._wakers.unregister(process.pidfd)

    def _is_complete(self, process: _Process) -> bool:
        """Whether no more is to come about it."""
        assert process.gone_at is not None
        known = process.hung_up and process.wait_status is not None
        return known or self.clock() - process.gone_at > _PATIENT_SECONDS

    def _row(self, process: _Process) -> Rows:
        status, number = _split(process.wait_status)
        reason, detail = self._reason(process, number)
        return {
            "rank": [process.watch.rank], "host": [process.watch.host],
            "pid": [process.watch.pid], "ts_ns": [process.left_ns], "status": [status],
            "signal": [number], "announced": [process.announced], "reason": [reason],
            "detail": [detail], "frames": [";".join(process.frames) or None],
        }  # fmt: skip

    def _reason(self, process: _Process, number: int | None) -> tuple[str | None, str | None]:
        if number == signal.SIGKILL or process.wait_status is None:
            line = self._log.killed(process.watch.pid)
            if line is not None or (process.oom.any_new() and not process.announced):
                return OUT_OF_MEMORY, line
        return (None, None) if process.error is None else (EXCEPTION, process.error)


def _opened(pid: int) -> tuple[int | None, int | None]:
    """The `stat` file and the pidfd of a process; None where there is none."""
    try:
        stat = open_stat(pid)
    except OSError:
        return None, None
    try:
        return stat, os.pidfd_open(pid)
    except (OSError, AttributeError):  # a kernel before 5.3; then it is polled
        return stat, None


def _has_ended(process: _Process) -> bool:
    """By a look at a process without a pidfd."""
    if process.pidfd is not None or process.stat is None:
        return False
    try:
        return read_stat(process.stat)[0] in _ENDED
    except OSError:
        return True


def _wait_status(stat: int | None) -> int | None:
    """How a process ended, while it is a zombie; None once its parent has read it."""
    if stat is None:
        return None
    try:
        fields = read_stat(stat)
        return int(fields[_EXIT_CODE]) if fields[0] in _ENDED else None
    except (OSError, IndexError, ValueError):
        return None


def _split(wait_status: int | None) -> tuple[int | None, int | None]:
    """The exit status, or the signal that killed the process."""
    if wait_status is None:
        return None, None
    number = wait_status & 0x7F
    return (None, number) if number else (wait_status >> 8 & 0xFF, None)
