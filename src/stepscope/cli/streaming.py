"""A simulated job while it runs: written into its folder, or told to a processor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from stepscope.errors import StoreError
from stepscope.store.encode import rows_of

if TYPE_CHECKING:
    from stepscope.simulate.live import Slice
    from stepscope.store import JobWriter
    from stepscope.trace import Job

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
) -> None:  # fmt: skip
    """Hands on each slice when its time has come. `epoch_ns` is when the job began by `clock`."""
    for one in slices:
        due_ns = epoch_ns + one.until_ns
        sleep(max(due_ns - clock(), 0) / 1e9)
        sink.take(one, due_ns)


class IntoStore:
    """Writes the folder, as the processors of all hosts would."""

    def __init__(self, job: Job, writer: JobWriter) -> None:
        self._job = job
        self._writer = writer
        writer.write_job(job)

    def take(self, one: Slice, due_ns: int) -> None:
        """Raises StoreError: the store cannot be written."""
        for name, table in one.new.items():
            self._writer.append(name, rows_of(name, table))
        for name, table in one.now.items():
            self._writer.replace(name, _REPLACED, rows_of(name, table))
        if one.now:
            self._writer.write_job(replace(self._job, observed_until_ns=due_ns))
        status = self._writer.flush(now=True)
        if status.error is not None:
            raise StoreError(status.error)

    def close(self) -> None:
        """All is written."""
