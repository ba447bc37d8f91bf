"""Merges this host's files and deletes old ones while its jobs run.

A child process does the work at the lowest priority: its memory is freed afterwards, and nothing
waits for it. It may be killed at any moment (`store.compact`).
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

logger = logging.getLogger(__name__)

EVERY_SECONDS = 600.0
"""By then each table has some ten files. A pass takes half a second of CPU, mostly startup."""
LEAST = 8
"""Fewer small files of today than this are left for the next pass."""
_LOWEST = 19


class Child(Protocol):
    """The process of a running pass."""

    def poll(self) -> int | None: ...

    def terminate(self) -> None: ...


class Upkeep:
    """Starts a pass over a job's folder when it is due, one at a time.

    Args:
        options: retention options of `stepscope compact`.
        folders: returns the folders of the jobs being recorded, by job.
    """

    def __init__(
        self, host: str, options: Sequence[str], folders: Callable[[], Mapping[str, str]], *,
        start: Callable[[Sequence[str]], Child] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._arguments = ["--host", host, "--least", str(LEAST), *options]
        self._folders = folders
        self._start = start or start_compact
        self._clock = clock
        self._due_at: dict[str, float] = {}
        self._look_at = 0.0
        self._child: Child | None = None

    def turn(self) -> None:
        """Starts a pass if one is due. Call it often."""
        now = self._clock()
        if now < self._look_at or self._busy():
            return
        self._look_at = now + 1.0
        folders = self._folders()
        self._due_at = {job: self._due_at.get(job, now + EVERY_SECONDS) for job in folders}
        job = min(self._due_at, key=self._due_at.__getitem__, default=None)
        if job is not None and self._due_at[job] <= now:
            self._due_at[job] = now + EVERY_SECONDS
            self._begin(folders[job])

    def close(self) -> None:
        """Terminates a running pass."""
        if self._busy() and self._child is not None:
            self._child.terminate()

    def _busy(self) -> bool:
        status = self._child.poll() if self._child is not None else 0
        if status is None:
            return True
        if status:
            logger.warning("merging files failed with status %d; trying again later", status)
        self._child = None
        return False

    def _begin(self, folder: str) -> None:
        try:
            self._child = self._start([folder, *self._arguments])
        except OSError as error:
            logger.warning("cannot start merging files: %s", error)


def start_compact(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """Runs `stepscope compact` at the lowest priority; its messages go where our log goes."""
    command = [sys.executable, "-m", "stepscope.cli", "compact", *arguments]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    os.setpriority(os.PRIO_PROCESS, child.pid, _LOWEST)
    return child
