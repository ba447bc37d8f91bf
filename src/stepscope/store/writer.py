"""Writes one host's part of a job folder, and tolerates a store that does not respond.

Lossy in one place: while the store cannot be written, each table keeps its newest `buffer_rows`
rows. Older rows are dropped, counted exactly, and recorded in table `losses` when the store is
back.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from stepscope.errors import StepscopeError, StoreError
from stepscope.store.buffer import Chunks, Loss, Replacement, TableBuffer, concat
from stepscope.store.encode import PACKED, QUICK, Rows, arrow_table, parquet_bytes
from stepscope.store.fragments import is_deleted, publish
from stepscope.store.layout import file_name, safe_name, table_folder
from stepscope.store.location import Location
from stepscope.trace import Job

logger = logging.getLogger(__name__)

_LONGEST_BACKOFF_S = 30.0
_HOST_LEVEL = -1
_OLD_FILES = 2
"""A file that rarely gets rows is closed at this many times the usual age. Compaction relies on old
files not changing any more (`compact.QUIET_S`)."""
_STORED_FIRST = ("stacks",)
"""Evidence is stored before what it explains: a reader of `proc_stopped` also finds the stacks."""
_LONG_TEXTS = ("stacks",)


@dataclass(frozen=True)
class FlushStatus:
    """The writer's row counts. `error` is None while the store can be written."""

    stored_rows: int = 0
    pending_rows: int = 0
    dropped_rows: int = 0
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


@dataclass(frozen=True)
class _Snapshot:
    """Everything that one flush stores, taken under the lock."""

    job: Job | None
    rows: dict[str, Chunks]
    replacements: dict[tuple[str, str], pa.Table | None]


class JobWriter:
    """Appends rows in memory; `flush` stores them. Both may be called from different threads.

    A table's current file is rewritten with all its rows at every flush, and closed when it is
    large or old. So readers find few, complete files and no row twice.
    """

    def __init__(
        self,
        location: Location,
        host: str,
        *,
        max_rows_per_file: int = 20_000,
        max_file_age_s: float = 60.0,
        buffer_rows: int = 200_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.location = location
        self.host = host
        self._max_rows_per_file = max_rows_per_file
        self._max_file_age_s = max_file_age_s
        self._buffer_rows = buffer_rows
        self._clock = clock
        self._session = secrets.token_hex(4)
        self._files = 0
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._tables = {table: TableBuffer(table) for table in _STORED_FIRST}
        self._replacements: dict[tuple[str, str], Replacement] = {}
        self._job: Job | None = None
        self._job_stored: Job | None = None
        self._status = FlushStatus()
        self._failures = 0
        self._retry_at_s = 0.0

    @property
    def status(self) -> FlushStatus:
        """The status of the last flush, with the current number of pending rows."""
        with self._lock:
            pending = sum(buffer.pending.rows for buffer in self._tables.values())
            return replace(self._status, pending_rows=pending)

    def append(self, table: str, rows: Rows) -> None:
        """Adds rows; a column that a collector cannot fill is all None, or left out."""
        piece = arrow_table(table, rows)
        if piece.num_rows:
            with self._lock:
                self._add(table, piece)

    def losses(
        self, table: str, start_ns: int, end_ns: int, rows: int, rank: int = _HOST_LEVEL
    ) -> None:
        """Records that rows of a table were lost in an interval."""
        self.append("losses", _loss_rows(table, {rank: Loss(start_ns, end_ns, rows)}))

    def replace(self, table: str, file: str, rows: Rows) -> None:
        """Replaces the contents of a file; deletes it if there are no rows.

        A row that moves to the growing files must be appended before it is removed here. Readers
        may then find it twice for a moment, but never miss it.
        """
        wanted = arrow_table(table, rows)
        key = (table, safe_name(file.removesuffix(".parquet")) + ".parquet")
        with self._lock:
            self._replacements.setdefault(key, Replacement(None)).wanted = (
                wanted if wanted.num_rows else None
            )

    def write_job(self, job: Job) -> None:
        """Sets what this host knows of the job; stored with the next flush."""
        with self._lock:
            self._job = job

    def flush(self, *, now: bool = False) -> FlushStatus:
        """Stores everything appended so far. Never raises if the store cannot be written.

        May block for seconds if a bucket does not respond. After a failure it backs off before it
        tries again, unless `now` is set.
        """
        with self._flushing:
            wait_s = self._retry_at_s - self._clock()
            # a longer wait than the longest backoff means that the clock was set back
            if now or not 0 < wait_s <= _LONGEST_BACKOFF_S:
                self._attempt()
        return self.status

    def close(self) -> FlushStatus:
        """Flushes a last time, ignoring the backoff."""
        with self._flushing:
            self._job_stored = None  # so that job.json is rebuilt with the newest fragments
            self._attempt()
        return self.status

    def _add(self, table: str, piece: pa.Table) -> None:
        buffer = self._tables.setdefault(table, TableBuffer(table))
        buffer.pending.add(piece)
        self._bound(buffer)

    def _bound(self, buffer: TableBuffer) -> None:
        dropped = buffer.bound(self._buffer_rows)
        if dropped:
            total = self._status.dropped_rows + dropped
            self._status = replace(self._status, dropped_rows=total)

    def _attempt(self) -> None:
        snapshot = self._snapshot()
        try:
            self._store(snapshot)
            self._store_losses()
        except StepscopeError as error:
            self._in_trouble(error)
        else:
            self._out_of_trouble()
        finally:
            self._give_back(snapshot)

    def _snapshot(self) -> _Snapshot:
        with self._lock:
            return _Snapshot(
                job=self._job,
                rows={n: b.take_pending() for n, b in self._tables.items() if b.pending.rows},
                replacements={key: r.wanted for key, r in self._replacements.items()},
            )

    def _give_back(self, snapshot: _Snapshot) -> None:
        with self._lock:
            for table, chunks in snapshot.rows.items():
                self._tables[table].give_back(chunks)
                self._bound(self._tables[table])

    def _store(self, snapshot: _Snapshot) -> None:
        """Stores growing files before replacements, as `replace` requires."""
        if self._job_stored is not None and is_deleted(self.location):
            self._job_stored = None
        if snapshot.job is not None and snapshot.job != self._job_stored:
            publish(self.location, self.host, snapshot.job, self._job_stored)
            self._job_stored = snapshot.job
        for table in list(snapshot.rows):
            self._store_rows(table, snapshot.rows[table])
            del snapshot.rows[table]
        for (table, file), wanted in snapshot.replacements.items():
            self._store_replacement(table, file, wanted)

    def _store_rows(self, table: str, chunks: Chunks) -> None:
        buffer = self._tables[table]
        now_s = self._clock()
        if buffer.certain and now_s - buffer.opened_s >= _OLD_FILES * self._max_file_age_s:
            buffer.stored = buffer.file = None
        if buffer.file is None:
            self._files += 1
            buffer.file, buffer.opened_s = file_name(now_s, self._session, self._files), now_s
        before = [] if buffer.stored is None else [buffer.stored]
        rows = concat([*before, *chunks.pieces])
        buffer.certain = False
        try:
            self._put(table, buffer.file, rows)
        except StoreError:
            # a table that cannot be stored goes last, so that it does not block the others
            with self._lock:
                self._tables[table] = self._tables.pop(table)
            raise
        buffer.stored, buffer.certain = rows, True
        with self._lock:
            stored = self._status.stored_rows + chunks.rows
            self._status = replace(self._status, stored_rows=stored)
        aged = now_s - buffer.opened_s >= self._max_file_age_s
        if rows.num_rows >= self._max_rows_per_file or aged:
            buffer.stored = buffer.file = None

    def _store_replacement(self, table: str, file: str, wanted: pa.Table | None) -> None:
        replacement = self._replacements[table, file]
        if replacement.is_stored(wanted):
            return
        # until it has succeeded, the contents of the file are unknown
        replacement.known = False
        if wanted is None:
            self.location.delete(f"{table_folder(table, self.host)}/{file}")
        else:
            self._put(table, file, wanted)
        replacement.stored, replacement.known = wanted, True

    def _put(self, table: str, file: str, rows: pa.Table) -> None:
        path = f"{table_folder(table, self.host)}/{file}"
        codec = PACKED if table in _LONG_TEXTS else QUICK
        self.location.put(path, parquet_bytes(rows, codec))

    def _store_losses(self) -> None:
        """Records the losses after the store is back."""
        with self._lock:
            gone = [(b.table, b.dropped) for b in self._tables.values() if b.dropped]
            for table, dropped in gone:
                self._add("losses", arrow_table("losses", _loss_rows(table, dropped)))
                self._tables[table].dropped = {}
            if not gone:
                return
            chunks = self._tables["losses"].take_pending()
        try:
            self._store_rows("losses", chunks)
        except StoreError:
            with self._lock:
                self._tables["losses"].give_back(chunks)
            raise

    def _in_trouble(self, error: StepscopeError) -> None:
        if not self._failures:
            logger.warning("%s; rows wait in memory, newest %d per table", error, self._buffer_rows)
        self._failures += 1
        backoff_s = min(_LONGEST_BACKOFF_S, 2.0 ** (self._failures - 1))
        self._retry_at_s = self._clock() + backoff_s
        with self._lock:
            self._status = replace(self._status, error=str(error))

    def _out_of_trouble(self) -> None:
        if self._failures:
            lost = self._status.dropped_rows
            logger.info("%s can be written again; %d rows were lost", self.location.url, lost)
        self._failures, self._retry_at_s = 0, 0.0
        with self._lock:
            self._status = replace(self._status, error=None)


def _loss_rows(table: str, losses: dict[int, Loss]) -> Rows:
    return {
        "rank": list(losses),
        "table": [table] * len(losses),
        "start_ns": [loss.start_ns for loss in losses.values()],
        "end_ns": [loss.end_ns for loss in losses.values()],
        "rows": [loss.rows for loss in losses.values()],
    }
