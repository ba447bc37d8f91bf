"""Finds ranks whose processes are stopped (SIGSTOP, a debugger), many times a second.

Each check reads one open file per process, which takes some 10 µs (measured).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator

from stepscope.processor.hardware.proc import open_stat, read_stat

_PARENT = 1
"""Field of `stat` after the name."""
_STOPPED = b"Tt"
"""Stopped by a signal or by a tracer."""


class StoppedProcesses:
    """The processes of each job, and which of them are stopped."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}
        self._jobs: dict[int, str] = {}
        self._parents: dict[int, int] = {}

    def watch(self, job: str, pid: int) -> None:
        """Starts watching a process; ignores one that does not exist (a simulated rank)."""
        self.unwatch(pid)
        with contextlib.suppress(OSError):
            self._files[pid] = open_stat(pid)
            self._jobs[pid] = job
            self._parents[pid] = int(read_stat(self._files[pid])[_PARENT])

    def unwatch(self, pid: int) -> None:
        self._jobs.pop(pid, None)
        self._parents.pop(pid, None)
        file = self._files.pop(pid, None)
        if file is not None:
            os.close(file)

    def are_children_of(self, parents: Collection[int]) -> bool:
        """Whether there are processes and all of them have one of these parents."""
        return bool(self._files) and all(self._parents.get(pid) in parents for pid in self._files)

    def look(self) -> dict[str, frozenset[int]]:
        """The stopped processes by job, for jobs that have any."""
        found: dict[str, set[int]] = {}
        for pid in self._stopped():
            found.setdefault(self._jobs[pid], set()).add(pid)
        return {job: frozenset(pids) for job, pids in found.items()}

    def close(self) -> None:
        for pid in list(self._files):
            self.unwatch(pid)

    def _stopped(self) -> Iterator[int]:
        for pid, file in self._files.items():
            with contextlib.suppress(OSError):  # it is gone, which its connection reports as well
                if read_stat(file)[0] in _STOPPED:
                    yield pid
