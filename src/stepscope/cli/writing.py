"""Writes a window in memory as a job folder, completely or not at all."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from stepscope.errors import StepscopeError, StoreError

if TYPE_CHECKING:
    from stepscope.store.location import Location
    from stepscope.store.writer import JobWriter
    from stepscope.window import Table, Window

_ROWS_AT_ONCE = 1 << 20


def write_window(window: Window, location: Location, recorder: str) -> None:
    """Writes the job and its tables; `recorder` takes the place of a host name in file names.

    Raises:
        StoreError: the folder cannot be written.
    """
    with _all_or_nothing(location):
        _write_job(window, location, recorder)


@contextmanager
def _all_or_nothing(location: Location) -> Iterator[None]:
    """Deletes the folder on failure: half of a job would be diagnosed as if it were complete."""
    try:
        yield
    except BaseException:
        with suppress(StepscopeError, OSError):
            _delete(location)
        raise


def _delete(location: Location) -> None:
    if location.is_local:
        shutil.rmtree(location.url)
        return
    for file in location.files():
        location.delete(file.path)


def _write_job(window: Window, location: Location, recorder: str) -> None:
    from stepscope.store.writer import JobWriter
    from stepscope.trace import TABLES

    writer = JobWriter(location, recorder, max_rows_per_file=_ROWS_AT_ONCE,
                       buffer_rows=2 * _ROWS_AT_ONCE)  # fmt: skip
    writer.write_job(window.job)
    with _no_retry_warnings():
        for name, table in window.tables.items():
            if name in TABLES:
                _append(writer, name, table)
        flush(writer)


@contextmanager
def _no_retry_warnings() -> Iterator[None]:
    """Silences the writer's warning that it keeps rows and retries, because we do not."""
    log = logging.getLogger("stepscope.store.writer")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _append(writer: JobWriter, name: str, table: Table) -> None:
    import numpy as np

    from stepscope.store.encode import rows_of

    by_rank = np.argsort(table.ints("rank"), kind="stable")
    for first in range(0, len(table), _ROWS_AT_ONCE):
        part = table.take(by_rank[first : first + _ROWS_AT_ONCE])
        writer.append(name, rows_of(name, part))
        flush(writer)


def flush(writer: JobWriter) -> None:
    """Writes what is left.

    Raises:
        StoreError: it cannot be written.
    """
    status = writer.flush(now=True)
    if status.error is not None:
        raise StoreError(status.error)
