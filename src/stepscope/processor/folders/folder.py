"""Writes the folder of one job: its tables, and its traces."""

from __future__ import annotations

import threading
import time

from stepscope.processor.folders.traces import TRACE_SECONDS, JobTraces
from stepscope.processor.records.normalise import Rows
from stepscope.processor.records.tables import together
from stepscope.processor.settings import Settings
from stepscope.store.location import Location
from stepscope.store.traces import TraceFiles
from stepscope.store.writer import FlushStatus, JobWriter
from stepscope.trace import TABLES, Job

OPEN_OPS_FILE = "open"
NO_OPEN_OPS: Rows = {column: [] for column in TABLES["comm_ops"].columns}
MOST_ROWS = 10_000
"""Rows of a table that are collected here before they go to the writer, because converting them
together costs little more than converting one; the writer bounds the rest."""


class JobFolder:
    """Rows come from any thread; `store`, `draw` and `close` are called from one."""

    def __init__(self, location: Location, host: str, settings: Settings) -> None:
        self.location = location
        self._writer = JobWriter(location, host)
        self._traces = JobTraces(TraceFiles(location), host) if settings.traces else None
        self._keep_kernels = settings.keep_kernels
        self._drawn_at = time.monotonic()
        self._waiting: dict[str, list[Rows]] = {}
        self._lock = threading.Lock()

    @property
    def status(self) -> FlushStatus:
        return self._writer.status

    def write_job(self, fragment: Job) -> None:
        """Sets what this host knows of the job."""
        self._writer.write_job(fragment)
        if self._traces is not None:
            self._traces.job = fragment

    def append(self, table: str, rows: Rows) -> None:
        """Adds rows; kernels go to traces only, unless `keep_kernels` is set."""
        if table != "kernels" or self._keep_kernels:
            self._keep(table, rows)
        if table == "kernels" and self._traces is not None:
            self._traces.append(table, rows)  # thousands at once, which need not be collected

    def record(self, table: str, rows: Rows) -> None:
        """Adds large numbers of rows, which are stored directly and not drawn: traces have no room
        for them."""
        self._writer.append(table, rows)

    def _keep(self, table: str, rows: Rows) -> None:
        with self._lock:
            waiting = self._waiting.setdefault(table, [])
            if waiting and waiting[0].keys() != rows.keys():
                self._hand_over(table)
            self._waiting.setdefault(table, []).append(rows)
            if sum(len(piece["rank"]) for piece in self._waiting[table]) >= MOST_ROWS:
                self._hand_over(table)

    def _hand_over(self, table: str) -> None:
        rows = together(self._waiting.pop(table))
        self._writer.append(table, rows)
        if self._traces is not None and table != "kernels":
            self._traces.append(table, rows)

    def _hand_over_all(self) -> None:
        with self._lock:
            for table in list(self._waiting):
                self._hand_over(table)

    def replace_open(self, rows: Rows) -> None:
        """Replaces the list of outstanding operators; those that ended must be in the table
        before."""
        rows = rows or NO_OPEN_OPS
        self._hand_over_all()
        self._writer.replace("comm_ops", OPEN_OPS_FILE, rows)
        if self._traces is not None:
            self._traces.outstanding = rows

    def store(self) -> None:
        """Stores everything but traces."""
        self._hand_over_all()
        self._writer.flush()

    def draw(self, *, put_off: bool = False) -> None:
        """Writes new trace members, every few seconds; half as often with `put_off`, so that
        readers of the tables need not wait."""
        pause = 2 * TRACE_SECONDS if put_off else TRACE_SECONDS
        if self._traces is not None and time.monotonic() - self._drawn_at >= pause:
            self._drawn_at = time.monotonic()
            self._traces.flush(time.time_ns())
            self._report_losses(self._traces)

    def close(self) -> None:
        """Stores and draws everything left."""
        self._hand_over_all()
        if self._traces is not None:
            self._traces.close(time.time_ns())
            self._report_losses(self._traces)
        self._writer.close()

    def _report_losses(self, traces: JobTraces) -> None:
        for rank, loss in traces.take_lost().items():
            self._writer.losses("traces", loss.start_ns, loss.end_ns, loss.rows, rank)
