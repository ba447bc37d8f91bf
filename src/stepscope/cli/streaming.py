"""A simulated job written while it runs, as the processors of its hosts would."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.errors import StoreError
from stepscope.store.encode import rows_of

if TYPE_CHECKING:
    from stepscope.simulate.live import Slice
    from stepscope.store import JobWriter
    from stepscope.trace import Job

_REPLACED = "open"
"""The file of rows that hold for now, in every table that has some."""


def stream(
    slices: Iterable[Slice], job: Job, writer: JobWriter, epoch_ns: int,
    clock: Callable[[], int] = time.time_ns, sleep: Callable[[float], None] = time.sleep,
) -> None:  # fmt: skip
    """Writes each slice when its time has come. `epoch_ns` is when the job began by `clock`.

    Raises:
        StoreError: the store cannot be written.
    """
    writer.write_job(job)
    for one in slices:
        due_ns = epoch_ns + one.until_ns
        sleep(max(due_ns - clock(), 0) / 1e9)
        for name, table in one.new.items():
            writer.append(name, rows_of(name, table))
        for name, table in one.now.items():
            writer.replace(name, _REPLACED, rows_of(name, table))
        if one.now:
            writer.write_job(replace(job, observed_until_ns=due_ns))
        status = writer.flush(now=True)
        if status.error is not None:
            raise StoreError(status.error)
