"""Summarizes traces into rows of `patterns`, in a child process at the lowest priority.

One child at a time, `python -m stepscope.patterns TRACE`, whose output is an Arrow stream. What it
needs in memory is freed when it ends, and it may fail without harm.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from stepscope.trace import TABLES

logger = logging.getLogger(__name__)

LONGEST_SECONDS = 600.0
"""For one trace; a trace of 10 M events takes a minute. Our choice."""
MOST_BYTES = 16 << 20
"""Of a rank's rows: EROICA summarizes a worker in 30 KB (section 4.2). Our choice."""
MOST_WAITING = 256
"""Traces that wait: sixteen windows of sixteen ranks. Our choice."""
COMMAND = (sys.executable, "-m", "stepscope.patterns")
_LOWEST = 19

Rows = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """One trace, and what is known about it."""

    job: str
    rank: int
    trace: Path
    options: tuple[str, ...]


@dataclass
class _Child:
    task: Task
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    errors: IO[bytes]
    until_s: float


Done = Callable[[Task, Rows, str | None], None]
"""Called with a task's rows, or why there are none."""


class Summaries:
    """Owns the child. Call `turn` often."""

    def __init__(self, done: Done, command: Sequence[str] = COMMAND) -> None:
        self._done = done
        self._command = command
        self._waiting: deque[Task] = deque()
        self._child: _Child | None = None

    def add(self, task: Task) -> None:
        """Has a trace summarized."""
        if len(self._waiting) >= MOST_WAITING:
            self._done(task, {}, "too many traces wait to be summarized")
            return
        self._waiting.append(task)

    @property
    def busy(self) -> bool:
        return self._child is not None or bool(self._waiting)

    def turn(self) -> None:
        """Takes the result of a child that has ended, and starts the next."""
        if self._child is not None and self._ended(self._child):
            child, self._child = self._child, None
            rows, trouble = _result(child)
            self._done(child.task, rows, trouble)
        if self._child is None and self._waiting:
            self._start(self._waiting.popleft())

    def close(self) -> None:
        """Kills a child that is at work; what waits is not summarized."""
        if self._child is not None:
            self._child.process.kill()
            self._child.process.wait()
            self._done(self._child.task, {}, "the processor stopped before it was summarized")
        for task in self._waiting:
            self._done(task, {}, "the processor stopped before it was summarized")
        self._child = None
        self._waiting.clear()

    def _ended(self, child: _Child) -> bool:
        if child.process.poll() is not None:
            return True
        if time.monotonic() > child.until_s:
            child.process.kill()
            child.process.wait()
            return True
        return False

    def _start(self, task: Task) -> None:
        # closed when its result is read
        output, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        words = [*self._command, str(task.trace), "--rank", str(task.rank), *task.options]
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=errors
            )
            os.setpriority(os.PRIO_PROCESS, process.pid, _LOWEST)
        except OSError as error:
            self._done(task, {}, f"cannot be summarized: {error}")
            return
        until_s = time.monotonic() + LONGEST_SECONDS
        self._child = _Child(task, process, output, errors, until_s)


def _result(child: _Child) -> tuple[Rows, str | None]:
    status = child.process.returncode
    with child.output as output, child.errors as errors:
        errors.seek(0)
        lines = errors.read(MOST_BYTES).decode(errors="replace").strip().splitlines()
        if status:
            how = f"killed by signal {-status}" if status < 0 else f"status {status}"
            said = lines[-1] if lines else f"the summary ended with {how}"
            return {}, f"cannot be summarized: {said}"
        for line in lines:
            logger.info("%s", line)
        output.seek(0)
        data = output.read(MOST_BYTES + 1)
    return _rows(data)


def _rows(data: bytes) -> tuple[Rows, str | None]:
    """The columns of table `patterns` in an Arrow stream."""
    if len(data) > MOST_BYTES:
        return {}, f"cannot be summarized: more than {MOST_BYTES} bytes of patterns"
    try:
        with pa.ipc.open_stream(data) as stream:
            table = stream.read_all()
    except (pa.ArrowException, OSError, ValueError) as error:
        return {}, f"cannot be summarized: {str(error).splitlines()[0]}"
    wanted = [name for name in TABLES["patterns"].columns if name in table.column_names]
    return {name: table.column(name).to_pylist() for name in wanted}, None
