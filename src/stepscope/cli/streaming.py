"""Plays a simulated job in real time, into its folder or into any other sink."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from stepscope.cli.recorders import Recorders
from stepscope.cli.writing import flush
from stepscope.store.encode import rows_of
from stepscope.store.writer import JobWriter

if TYPE_CHECKING:
    from stepscope.simulate.live import Slice
    from stepscope.store.location import Location
    from stepscope.trace import Job
    from stepscope.window import Table

MAX_RECORDERS = 64
"""Default upper limit. A recorder writes about seven files, at 1 to 2 ms each: one machine that
simulates all 1,280 hosts of a job cannot flush each of them every few seconds."""
ALL_ROWS = 2**40
"""Unbounded: no row is dropped, because the first failed flush ends the simulation."""
_SCHEDULER = "scheduler"
"""Recorder name of the writer of job.json, where a processor would use its host name."""
_OPEN_FILE = "open"
"""Name of the file that is replaced at each flush: rows of operators that are still open."""


class Sink(Protocol):
    """Where a live job goes."""

    def take(self, slice: Slice, due_ns: int) -> None:
        """Accepts the rows that became visible at the time `due_ns`."""

    def close(self) -> None:
        """Ends the job; no more slices follow."""


def stream(
    slices: Iterable[Slice], sink: Sink, epoch_ns: int,
    clock: Callable[[], int] = time.time_ns, sleep: Callable[[float], None] = time.sleep,
) -> int:  # fmt: skip
    """Passes each slice to the sink when it is due, until the last one or Ctrl-C.

    `epoch_ns` is the start of the job by `clock`. Returns the largest delay of a slice in ns; a
    large one means that the job is too big for this machine.
    """
    latest_ns = 0
    with suppress(KeyboardInterrupt):
        for slice in slices:
            due_ns = epoch_ns + slice.until_ns
            sleep(max(due_ns - clock(), 0) / 1e9)
            latest_ns = max(latest_ns, clock() - due_ns)
            sink.take(slice, due_ns)
    return latest_ns


class StoreSink:
    """Writes the job folder as several processors would, each recording some of the hosts.

    Rows stay in memory until the next flush, which writes the files of each recorder.
    """

    def __init__(
        self, job: Job, location: Location, recorders: int | None, flush_seconds: float
    ) -> None:  # fmt: skip
        """Raises StoreError: the store cannot be written."""
        count = min(recorders or MAX_RECORDERS, len(job.hosts))
        self._job = job
        self._recorders = Recorders(job, count)
        self._writers = [JobWriter(location, name, buffer_rows=ALL_ROWS)
                         for name in self._recorders.names]  # fmt: skip
        self._scheduler = JobWriter(location, _SCHEDULER)
        self._flush_ns = int(flush_seconds * 1e9)
        self._flushed_ns = 0
        self._open: dict[str, Table] = {}
        self._scheduler.write_job(job)
        flush(self._scheduler)

    def take(self, slice: Slice, due_ns: int) -> None:
        """Raises StoreError: the store cannot be written."""
        for name, table in slice.new.items():
            for number, rows in self._recorders.split(table):
                self._writers[number].append(name, rows_of(name, rows))
        self._open |= slice.now
        if due_ns - self._flushed_ns >= self._flush_ns:
            self._flushed_ns = due_ns
            self._replace_open(due_ns)
            self._flush()

    def close(self) -> None:
        """Raises StoreError: the store cannot be written."""
        self._flush()

    def _replace_open(self, due_ns: int) -> None:
        """Replaces the rows of open operators, and updates `observed_until_ns`."""
        for name, table in self._open.items():
            for number, rows in self._recorders.split(table):
                self._writers[number].replace(name, _OPEN_FILE, rows_of(name, rows))
        if self._open:
            self._scheduler.write_job(replace(self._job, observed_until_ns=due_ns))
        self._open.clear()

    def _flush(self) -> None:
        """Writes rows first and job.json last: its `observed_until_ns` promises that they exist."""
        for writer in (*self._writers, self._scheduler):
            flush(writer)
