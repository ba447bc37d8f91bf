"""Sends the series of this host's jobs by remote write every fifteen seconds, if configured."""

from __future__ import annotations

import time
from collections.abc import Callable

from stepscope.processor.records.normalise import Rows
from stepscope.processor.reporting.metrics import HostMetrics
from stepscope.store.remote_write import RemoteWriter, Sample

EVERY_SECONDS = 15.0
"""A common scrape interval of Prometheus."""


class Reporting:
    """Does nothing without a URL. `note` and `turn` never wait for a server."""

    def __init__(
        self, host: str, url: str | None, *, clock: Callable[[], float] = time.time,
        writer: RemoteWriter | None = None,
    ) -> None:  # fmt: skip
        """Raises UsageError: the URL is invalid."""
        self._host = host
        self._clock = clock
        self._metrics = HostMetrics(host)
        self._writer = writer or (None if url is None else RemoteWriter(url).start())
        self._due_at = clock() + EVERY_SECONDS

    def note(self, job: str, table: str, rows: Rows) -> None:
        """Takes rows as they are stored."""
        if self._writer is not None:
            self._metrics.note(job, table, rows)

    def turn(self) -> None:
        """Sends samples if they are due. Call it often."""
        now = self._clock()
        if self._writer is None or (now < self._due_at <= now + EVERY_SECONDS):
            return
        self._due_at = now + EVERY_SECONDS
        self._send(self._writer, now)

    def forget(self, job: str) -> None:
        """A job has ended."""
        self._metrics.forget(job)

    def close(self) -> None:
        """Sends the final values."""
        if self._writer is not None:
            self._send(self._writer, self._clock())
            self._writer.close()

    def _send(self, writer: RemoteWriter, now_s: float) -> None:
        time_ms = int(now_s * 1000)
        lost = Sample(
            "stepscope_remote_write_dropped_samples_total", (("host", self._host),),
            float(writer.dropped), time_ms,
        )  # fmt: skip
        writer.offer([*self._metrics.samples(time_ms), lost])
