"""State and verdicts of a job as series for dashboards and alerts, while somebody watches it."""

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
"""Unchanged ones too: Prometheus forgets a series after five minutes of silence."""
MOST_VERDICTS = 5
"""Of one diagnosis, the most likely and costly: each is two series."""

Series = dict[tuple[str, Labels], float]


class Announcer:
    """Sends what it was last shown, at once where that is new, then again and again."""

    def __init__(self, writer: RemoteWriter, watcher: str | None = None) -> None:
        self._writer = writer
        self._watcher = watcher or host_name()
        self._now: Series = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stepscope-verdicts", daemon=True)

    def start(self) -> Announcer:
        self._thread.start()
        return self

    def show(self, diagnosis: Diagnosis) -> None:
        """Takes what is true now; series that are no more true end."""
        with self._lock:
            before, self._now = self._now, series(diagnosis, self._watcher)
            if before != self._now:
                self._send(dict.fromkeys(before.keys() - self._now.keys(), STALE))

    def repeat(self) -> None:
        """Says again what is true now."""
        with self._lock:
            self._send({})

    def close(self) -> None:
        """Nobody watches any more: the series end."""
        self._stop.set()
        with self._lock:
            ended, self._now = dict.fromkeys(self._now, STALE), {}
            self._send(ended)
        self._writer.close()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_SECONDS):
            self.repeat()

    def _send(self, ended: Series) -> None:
        time_ms = time.time_ns() // 1_000_000
        said = {**self._now, **ended}
        self._writer.offer([Sample(name, labels, v, time_ms) for (name, labels), v in said.items()])


def announcer_to(url: str | None) -> Announcer | None:
    """Sends to a server, where one is named.

    Raises:
        UsageError: the URL makes no sense.
    """
    return None if url is None else Announcer(RemoteWriter(url).start()).start()


def series(diagnosis: Diagnosis, watcher: str) -> Series:
    """Names and labels as `docs/naming.md` has them. `watcher` is the host that looks: several do
    where a job was started on several, and may look at different moments."""
    base = (("job", diagnosis.job_id), ("watcher", watcher))
    found: Series = {
        ("stepscope_state", (*base, ("state", state))): float(state == diagnosis.state)
        for state in get_args(State)
    }
    found["stepscope_verdicts", base] = float(len(diagnosis.verdicts))
    for verdict in diagnosis.verdicts[:MOST_VERDICTS]:
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
