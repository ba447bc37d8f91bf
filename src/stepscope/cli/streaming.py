"""A simulated job while it runs: written into its folder, or told to a processor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from stepscope.cli.recorders import Recorders
from stepscope.errors import StoreError
from stepscope.store.encode import rows_of
from stepscope.store.writer import JobWriter

if TYPE_CHECKING:
    from stepscope.simulate.live import Slice
    from stepscope.store.location import Location
    from stepscope.trace import Job
    from stepscope.window import Table

MOST_RECORDERS = 64
"""Unless more are asked for. A recorder writes some seven files, at 1 to 2 ms each: a machine that
stands for all 1,280 hosts of a job has no time for a flush of each every few seconds."""
ALL_ROWS = 2**40
"""No row is dropped: the first flush that fails ends it all."""
_DESCRIBES = "scheduler"
"""In place of a host: who knows what the job was started with."""
_REPLACED = "open"
"""The file of rows that hold for now, in every table that has some."""


class Sink(Protocol):
    """Where a live job goes."""

    def take(self, one: Slice, due_ns: int) -> None:
        """What is there at one moment and was not before; `due_ns` is when that is."""

    def close(self) -> None:
        """Nothing more will come."""


def stream(
    slices: Iterable[Slice], sink: Sink, epoch_ns: int,
    clock: Callable[[], int] = time.time_ns, sleep: Callable[[float], None] = time.sleep,
) -> int:  # fmt: skip
    """Hands on each slice when its time has come, to the last or until Ctrl-C.

    `epoch_ns` is when the job began by `clock`. Returns how late the latest slice was, in ns: more
    than little, and the job was too large for this machine.
    """
    latest_ns = 0
    with suppress(KeyboardInterrupt):
        for one in slices:
            due_ns = epoch_ns + one.until_ns
            sleep(max(due_ns - clock(), 0) / 1e9)
            latest_ns = max(latest_ns, clock() - due_ns)
            sink.take(one, due_ns)
    return latest_ns


class IntoStore:
    """Writes the folder as processors would, of which each has some of the hosts: rows wait in
    memory until the next flush, and go into files of their recorder."""

    def __init__(
        self, job: Job, location: Location, recorders: int | None, flush_seconds: float
    ) -> None:  # fmt: skip
        """Raises StoreError: the store cannot be written."""
        count = min(recorders or MOST_RECORDERS, len(job.hosts))
        self._job = job
        self._recorders = Recorders(job, count)
        self._writers = [JobWriter(location, name, buffer_rows=ALL_ROWS)
                         for name in self._recorders.names]  # fmt: skip
        self._scheduler = JobWriter(location, _DESCRIBES)
        self._flush_ns = int(flush_seconds * 1e9)
        self._flushed_ns = 0
        self._held: dict[str, Table] = {}
        self._scheduler.write_job(job)
        _store(self._scheduler)

    def take(self, one: Slice, due_ns: int) -> None:
        """Raises StoreError: the store cannot be written."""
        for name, table in one.new.items():
            for number, rows in self._recorders.split(table):
                self._writers[number].append(name, rows_of(name, rows))
        self._held |= one.now
        if due_ns - self._flushed_ns >= self._flush_ns:
            self._flushed_ns = due_ns
            self._hold(due_ns)
            self._flush()

    def close(self) -> None:
        """Raises StoreError: the store cannot be written."""
        self._flush()

    def _hold(self, due_ns: int) -> None:
        """Rows that hold for now, and how far everybody has looked."""
        for name, table in self._held.items():
            for number, rows in self._recorders.split(table):
                self._writers[number].replace(name, _REPLACED, rows_of(name, rows))
        if self._held:
            self._scheduler.write_job(replace(self._job, observed_until_ns=due_ns))
        self._held.clear()

    def _flush(self) -> None:
        """Rows before the time until which they are all there."""
        for writer in (*self._writers, self._scheduler):
            _store(writer)


def _store(writer: JobWriter) -> None:
    status = writer.flush(now=True)
    if status.error is not None:
        raise StoreError(status.error)
