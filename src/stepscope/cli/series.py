"""Sends state and verdicts of a followed job as metrics, by Prometheus Remote Write."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import get_args

from stepscope.diagnose.finding import Diagnosis, State, Verdict
from stepscope.report.units import names, ranks
from stepscope.store.remote_write import RemoteWriter, Sample
from stepscope.store.remote_write.encode import STALE, Labels
from stepscope.trace.host import host_name

EVERY_SECONDS = 15.0
"""Unchanged values are repeated: Prometheus drops a series after five minutes without samples."""
MAX_VERDICTS = 5
"""Verdicts sent per diagnosis, the most likely and costly first: each is two series."""

Series = dict[tuple[str, Labels], float]


class Announcer:
    """Sends the latest diagnosis when it changes, and repeats it at regular intervals."""

    def __init__(self, writer: RemoteWriter, watcher: str | None = None) -> None:
        self._writer = writer
        self._watcher = watcher or host_name()
        self._current: Series = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stepscope-verdicts", daemon=True)

    def start(self) -> Announcer:
        self._thread.start()
        return self

    def show(self, diagnosis: Diagnosis) -> None:
        """Sends a diagnosis if it changed; series of the previous one that no longer apply end."""
        with self._lock:
            before, self._current = self._current, series(diagnosis, self._watcher)
            if before != self._current:
                self._send(dict.fromkeys(before.keys() - self._current.keys(), STALE))

    def repeat(self) -> None:
        """Sends the current series again."""
        with self._lock:
            self._send({})

    def close(self) -> None:
        """Ends all series and closes the writer."""
        self._stop.set()
        with self._lock:
            ended, self._current = dict.fromkeys(self._current, STALE), {}
            self._send(ended)
        self._writer.close()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_SECONDS):
            self.repeat()

    def _send(self, ended: Series) -> None:
        time_ms = time.time_ns() // 1_000_000
        values = {**self._current, **ended}
        samples = [Sample(name, labels, v, time_ms) for (name, labels), v in values.items()]
        self._writer.offer(samples)


def announcer_to(url: str | None) -> Announcer | None:
    """Starts an announcer that sends to a server; None without a URL.

    Raises:
        UsageError: the URL is invalid.
    """
    return None if url is None else Announcer(RemoteWriter(url).start()).start()


def series(diagnosis: Diagnosis, watcher: str) -> Series:
    """The series of a diagnosis; `docs/naming.md` lists names and labels.

    `watcher` is the host that diagnoses. Each host of a multi-host job may do so, at its own time.
    """
    base = (("job", diagnosis.job_id), ("watcher", watcher))
    found: Series = {
        ("stepscope_state", (*base, ("state", state))): float(state == diagnosis.state)
        for state in get_args(State)
    }
    found["stepscope_verdicts", base] = float(len(diagnosis.verdicts))
    for verdict in diagnosis.verdicts[:MAX_VERDICTS]:
        labels = (*base, *_labels(verdict))
        found["stepscope_verdict_confidence", labels] = verdict.confidence
        if verdict.lost_fraction is not None:
            found["stepscope_verdict_lost_fraction", labels] = verdict.lost_fraction
    return found


def _labels(verdict: Verdict) -> Iterator[tuple[str, str]]:
    yield "kind", verdict.kind
    yield "cause", verdict.cause
    if verdict.ranks:
        yield "ranks", ranks(verdict.ranks).partition(" ")[2]
    if verdict.hosts:
        yield "hosts", names(verdict.hosts)
    if verdict.phase:
        yield "phase", verdict.phase
