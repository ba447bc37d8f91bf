"""The folder of one job as this processor fills it: tables, and traces beside them."""

from __future__ import annotations

import time

from stepscope.processor.normalise import Rows
from stepscope.processor.settings import Settings
from stepscope.processor.traces import TRACE_SECONDS, JobTraces
from stepscope.store.location import Location
from stepscope.store.traces import TraceFiles
from stepscope.store.writer import FlushStatus, JobWriter
from stepscope.trace import Job


class JobFolder:
    """Rows come from any thread; `flush` and `close` are called from one."""

    def __init__(self, location: Location, host: str, settings: Settings) -> None:
        self.location = location
        self._writer = JobWriter(location, host)
        self._traces = JobTraces(TraceFiles(location), host) if settings.traces else None
        self._keep_kernels = settings.keep_kernels
        self._drawn_at = time.monotonic()

    @property
    def status(self) -> FlushStatus:
        return self._writer.status

    def write_job(self, fragment: Job) -> None:
        """Sets what this host knows of the job."""
        self._writer.write_job(fragment)
        if self._traces is not None:
            self._traces.job = fragment

    def append(self, table: str, rows: Rows) -> None:
        """Adds rows; of kernels summaries and traces only, unless they are to be kept."""
        if table != "kernels" or self._keep_kernels:
            self._writer.append(table, rows)
        if self._traces is not None:
            self._traces.append(table, rows)

    def replace(self, table: str, file: str, rows: Rows) -> None:
        """Makes a file hold exactly these rows."""
        self._writer.replace(table, file, rows)

    def flush(self) -> None:
        """Stores everything, and draws what is new every few seconds."""
        if self._traces is not None and time.monotonic() - self._drawn_at >= TRACE_SECONDS:
            self._drawn_at = time.monotonic()
            self._traces.flush(time.time_ns())
            self._tell_losses(self._traces)
        self._writer.flush()

    def close(self) -> None:
        """Stores and draws what is left."""
        if self._traces is not None:
            self._traces.close(time.time_ns())
            self._tell_losses(self._traces)
        self._writer.close()

    def _tell_losses(self, traces: JobTraces) -> None:
        for rank, loss in traces.take_lost().items():
            self._writer.losses("traces", loss.start_ns, loss.end_ns, loss.rows, rank)
