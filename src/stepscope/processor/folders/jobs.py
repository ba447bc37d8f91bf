"""The job folders that this processor writes, flushed on a separate thread.

A slow store may block a flush for seconds; the socket is still read meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from stepscope.errors import StepscopeError
from stepscope.processor.folders.folder import JobFolder
from stepscope.processor.records.normalise import Rows
from stepscope.processor.settings import Settings
from stepscope.store.layout import job_location
from stepscope.store.location import Location
from stepscope.trace import Job

logger = logging.getLogger(__name__)

RETIRE_SECONDS = 600.0
"""A job without producers for ten minutes has ended; until then it may be restarting."""
_IDLE_SECONDS = 60.0
"""The pause while there is no job."""
_UNHEARD = (
    ": no process that imports torch reported; Python's -I, -E and -S, and a PYTHONPATH that a "
    "script sets, hide stepscope's start-up"
)


class JobFolders:
    """One folder per job, created when the job's first producer connects."""

    def __init__(
        self, host: str, settings: Settings, stored: Callable[[str], None] = lambda _: None
    ) -> None:
        """`stored` is called with a job's name whenever something of it was stored."""
        self._host = host
        self._stored = stored
        self._settings = settings
        self._folders: dict[str, JobFolder] = {}
        self._stores: dict[str, str] = {}
        self._done: list[JobFolder] = []
        self._due: dict[str, float] = {}
        self._hurried: set[str] = set()
        self._once_stored: dict[str, list[Callable[[], None]]] = {}
        self._lived_at: dict[str, float] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._turn = threading.Condition()
        self._turns = 0
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="stepscope-flush", daemon=True)
        self._thread.start()

    def open(self, job: str, store: str, fragment: Job) -> None:
        """Opens the job's folder if necessary and writes this host's part of `job.json`."""
        if self._stores.get(job) != store:
            self._stores[job] = store
            self._move(job, store)
            self._wake.set()
        folder = self._folders.get(job)
        if folder is not None:
            folder.write_job(fragment)

    def _move(self, job: str, store: str) -> None:
        """Opens the folder of a new job, or of another job of the same name."""
        with self._lock:
            if job in self._folders:
                self._done.append(self._folders.pop(job))
            self._due.pop(job, None)
        try:
            location = job_location(Location.parse(store or "stepscope-runs"), job)
        except StepscopeError as error:
            logger.warning("job %s is not recorded: %s", job, error)
            return
        with self._lock:
            self._folders[job] = JobFolder(location, self._host, self._settings)
            self._due[job] = 0.0
            self._lived_at[job] = time.monotonic()
        logger.info("recording job %s in %s", job, location)

    def folders(self) -> dict[str, str]:
        """The URL of each job's folder."""
        with self._lock:
            return {job: folder.location.url for job, folder in self._folders.items()}

    def retire(self, live: set[str]) -> list[str]:
        """Closes folders of jobs without producers for `RETIRE_SECONDS`; returns their names."""
        now = time.monotonic()
        for job in live:
            self._lived_at[job] = now
        gone = [job for job in self._folders if now - self._lived_at[job] > RETIRE_SECONDS]
        with self._lock:
            for job in gone:
                self._done.append(self._folders.pop(job))
                self._due.pop(job, None)
                self._once_stored.pop(job, None)
        for job in gone:
            del self._stores[job], self._lived_at[job]
        if gone:
            self._wake.set()
        return gone

    def append(self, job: str, table: str, rows: Rows) -> None:
        """Adds rows; those of a job without a folder are dropped."""
        folder = self._folders.get(job)
        if folder is not None:
            folder.append(table, rows)

    def record(self, job: str, table: str, rows: Rows) -> None:
        """Adds large numbers of rows, which are not drawn in traces."""
        folder = self._folders.get(job)
        if folder is not None:
            folder.record(table, rows)

    def replace_open(self, job: str, rows: Rows) -> None:
        """Replaces the list of outstanding operators, which is stored with the other rows."""
        folder = self._folders.get(job)
        if folder is not None:
            folder.replace_open(rows)

    def hurry(self, job: str) -> None:
        """Requests a flush of a job now instead of at its next turn."""
        with self._lock:
            if job in self._due:
                self._due[job] = 0.0
                self._hurried.add(job)
        self._wake.set()

    def once_stored(self, job: str, then: Callable[[], None]) -> None:
        """Calls it, on another thread, once everything appended so far is stored, which is at once
        if the store can be written."""
        with self._lock:
            self._once_stored.setdefault(job, []).append(then)
        self.hurry(job)

    def flush(self, job: str, timeout: float) -> str | None:
        """Stores everything of a job; returns a message if that did not succeed in time."""
        with self._turn:
            wanted = self._turns + 2  # the current turn may have passed this job already
            self.hurry(job)
            done = self._turn.wait_for(lambda: self._turns >= wanted or self._poke(), timeout)
        folder = self._folders.get(job)
        if folder is None:
            return f"nothing was recorded of {job}" + ("" if job in self._stores else _UNHEARD)
        return folder.status.error if done else f"{folder.location} does not respond"

    def notes(self, job: str) -> tuple[str, ...]:
        """What of a job is not in its store, in one line."""
        folder = self._folders.get(job)
        if folder is None or not (folder.status.dropped_rows or folder.status.error):
            return ()
        lost, waiting = folder.status.dropped_rows, folder.status.pending_rows
        return (f"{folder.location} lacks {lost} lost rows, and {waiting} that still wait",)

    def close(self) -> None:
        self._stop = True
        self._wake.set()
        self._thread.join(30)

    def _poke(self) -> bool:
        self._wake.set()
        return False

    def _run(self) -> None:
        while not self._stop:
            self._wake.wait(self._pause(time.monotonic()))
            self._wake.clear()
            self._flush_due(time.monotonic())
        for folder in [*self._done, *self._folders.values()]:
            folder.close()

    def _pause(self, now: float) -> float:
        """Seconds until the next job is due; `hurry` ends the pause early."""
        with self._lock:
            return max(min(self._due.values(), default=now + _IDLE_SECONDS) - now, 0.0)

    def _flush_due(self, now: float) -> None:
        with self._lock:
            due = [(job, self._folders[job]) for job, at in self._due.items() if at <= now]
            done, self._done = self._done, []
        for folder in done:
            folder.close()
        for job, folder in due:
            with self._lock:
                if self._folders.get(job) is folder:
                    self._due[job] = time.monotonic() + self._flush_seconds(folder)
                hurried = job in self._hurried
                self._hurried.discard(job)
                waiting = self._once_stored.pop(job, [])
            folder.store()
            self._stored(job)
            self._call(job, waiting, folder)
            folder.draw(put_off=hurried)  # another request may follow, which drawing would delay
        with self._turn:
            self._turns += 1
            self._turn.notify_all()

    def _call(self, job: str, waiting: list[Callable[[], None]], folder: JobFolder) -> None:
        if folder.status.ok:
            for then in waiting:
                then()
        elif waiting:
            with self._lock:
                self._once_stored.setdefault(job, []).extend(waiting)

    def _flush_seconds(self, folder: JobFolder) -> float:
        local = folder.location.is_local
        return self._settings.flush_seconds if local else self._settings.remote_flush_seconds
