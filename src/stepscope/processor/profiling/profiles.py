"""What the processor does about synchronized profiles: files, child processes and rows.

`state.windows` decides, this carries out. Called from the processor's thread; whatever may block is
on the thread of `board` or in the child of `summaries`.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.errors import StepscopeError
from stepscope.processor.instructions import NotProfiled, RankProfiled, WriteOrder
from stepscope.processor.profiling.archive import prune
from stepscope.processor.profiling.board import Board, Listed, Place
from stepscope.processor.profiling.feed import Feed
from stepscope.processor.profiling.summaries import Summaries, Task
from stepscope.processor.settings import Settings
from stepscope.processor.sockets.private import trouble_of
from stepscope.store.layout import safe_name, torch_trace_folder
from stepscope.store.location import Location
from stepscope.wire.profiling import ProfileOrder

logger = logging.getLogger(__name__)

SAMPLES_SECONDS = 6.0
"""After the reply of a rank, until py-spy has written what it sampled, and until counters and
phases have arrived. Our choice."""
_SLACK_SECONDS = 60.0
"""Rows are kept for longer than needed."""
_LOOK_SECONDS = 0.05
PRUNE_SECONDS = 60.0
"""Between two looks at the traces that are kept. Our choice."""

Rows = Mapping[str, Any]
Store = Callable[[str, str, Rows], None]


@dataclass(frozen=True)
class _Known:
    """A job that is recorded here."""

    url: str
    location: Location
    traces: Path | None
    """Where ranks write; None: they cannot."""


class Profiles:
    """Owns the board and the summaries.

    Args:
        store: appends rows to a table of a job.
        urls: returns the URL of each job's folder.
    """

    def __init__(
        self, host: str, settings: Settings, store: Store, urls: Callable[[], Mapping[str, str]]
    ) -> None:
        self._host, self._settings = host, settings
        self._store, self._urls = store, urls
        self._known: dict[str, _Known] = {}
        self._board = Board(host)
        self._summaries = Summaries(self._summarized)
        self._feed = Feed()
        self._waiting: dict[Task, Rows] = {}
        self._replied: list[tuple[float, RankProfiled, Rows]] = []
        """Ranks whose traces are summarized when their samples have been collected."""
        self._folders: dict[tuple[str, int], Path] = {}
        self._hurried: set[str] = set()
        """Jobs that have ended: nothing more is sampled of them."""
        self._pruned_at = 0.0

    def is_local(self, job: str) -> bool:
        known = self._job(job)
        return known is not None and known.location.is_local

    def folder(self, job: str) -> Path | None:
        """Where ranks of a job write their traces."""
        known = self._job(job)
        return None if known is None else known.traces

    def turn(self, polls: Mapping[str, float]) -> list[Listed]:
        """Reads orders of these jobs, each so often; returns what was read since the last call."""
        places = {}
        for job, poll_s in polls.items():
            known = self._job(job)
            if known is not None:
                places[job] = Place(known.location, poll_s)
        self._board.watch(places)
        self._summarize()
        self._summaries.turn()
        self._feed.forget(time.monotonic())
        self._prune()
        listed = self._board.listed()
        for one in listed:
            for order in one.new:
                self._make_room(one.job, order)
        return listed

    @property
    def busy(self) -> bool:
        """Whether traces wait to be summarized."""
        return bool(self._replied) or self._summaries.busy

    def finish(self, job: str, seconds: float) -> None:
        """Waits until the traces of a job are summarized. Called on any thread but `turn`'s."""
        until = time.monotonic() + seconds
        while self._has(job) and time.monotonic() < until:
            self._hurried.add(job)  # each time: a rank may have replied meanwhile
            time.sleep(_LOOK_SECONDS)

    def hurry(self) -> bool:
        """Hands all traces over without waiting for samples; whether some are not summarized."""
        self._summarize(now_s=math.inf)
        self._summaries.turn()
        return self.busy

    def _has(self, job: str) -> bool:
        waiting = [it.job for _, it, _ in list(self._replied)]
        return job in waiting or any(task.job == job for task in list(self._waiting))

    def write(self, it: WriteOrder) -> None:
        known = self._job(it.job)
        if known is not None:
            self._board.write(known.location, it.order)

    def profiled(self, it: RankProfiled, order: ProfileOrder | None) -> None:
        """A rank has written its trace, or reports why not."""
        reply = it.reply
        rows = {
            "rank": [it.rank], "host": [it.host], "window": [reply.window],
            "why": [None if order is None else order.why],
            "first_step": [it.first_step], "last_step": [it.last_step],
            "start_ns": [reply.start_ns], "duration_ns": [max(reply.end_ns - reply.start_ns, 0)],
            "trace": [None if reply.trouble else reply.path], "trouble": [reply.trouble],
        }  # fmt: skip
        if reply.trouble is not None:
            asked = {} if order is None else _asked(order)
            self._store(it.job, "profiles", {**rows, **asked, "duration_ns": [None]})
            logger.warning("rank %d has not profiled: %s", it.rank, reply.trouble)
            return
        logger.info("rank %d has profiled steps %d to %d", it.rank, it.first_step, it.last_step)
        if reply.note is not None:
            logger.warning("rank %d, window %s: %s", it.rank, reply.window, reply.note)
        self._feed.collect(it.job, time.monotonic() + SAMPLES_SECONDS + _SLACK_SECONDS)
        self._replied.append((time.monotonic() + SAMPLES_SECONDS, it, rows))

    def missing(self, it: NotProfiled) -> None:
        """A rank should have profiled and has not."""
        rows = {
            "rank": [it.rank], "host": [it.host], "window": [it.order.window],
            "why": [it.order.why], **_asked(it.order),
            "duration_ns": [None], "trace": [None], "trouble": [it.trouble],
        }  # fmt: skip
        self._store(it.job, "profiles", rows)
        logger.warning("rank %d has not profiled %s: %s", it.rank, it.order.window, it.trouble)

    def forget(self, job: str) -> None:
        self._known.pop(job, None)

    def close(self) -> None:
        self._board.close()
        self._summarize(now_s=math.inf)
        self._summaries.close()

    def asked(self, job: str, seconds: float) -> None:
        """Ranks of a job were asked to profile, and are done within so many seconds."""
        self._feed.collect(job, time.monotonic() + seconds + _SLACK_SECONDS)

    def note(self, job: str, table: str, rows: Rows) -> None:
        """Rows that were observed, from any thread."""
        self._feed.note(job, table, rows)

    def _summarize(self, now_s: float | None = None) -> None:
        """Hands the traces over whose samples have been collected by now."""
        now = time.monotonic() if now_s is None else now_s
        hurried, self._hurried = self._hurried, set()
        due = [one for one in self._replied if one[0] <= now or one[1].job in hurried]
        left = [one for one in self._replied if one not in due]
        for _, it, rows in due:
            task = Task(it.job, it.rank, Path(it.reply.path), self._options(it))
            self._waiting[task] = rows
            self._summaries.add(task)
            self._pruned_at = 0.0
        self._replied = left

    def _options(self, it: RankProfiled) -> tuple[str, ...]:
        """The window is that of the trace; what was observed besides lies in a folder."""
        steps = ("--first-step", str(it.first_step), "--last-step", str(it.last_step))
        reply = it.reply
        try:
            folder = Path(tempfile.mkdtemp(prefix="stepscope-"))
            seen = self._feed.write(it.job, it.rank, reply.start_ns, reply.end_ns, folder)
        except OSError as error:
            logger.warning("rank %d is summarized by its trace alone: %s", it.rank, error)
            return steps
        self._folders[reply.window, it.rank] = folder
        return (*steps, *seen)

    def _summarized(self, task: Task, rows: Rows, trouble: str | None) -> None:
        about = dict(self._waiting[task])
        folder = self._folders.pop((about["window"][0], task.rank), None)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if trouble is None and not rows.get("rank"):
            trouble = "its trace has no function that is on the critical path"
        if trouble is None:
            self._store(task.job, "patterns", rows)
        if trouble is not None:
            logger.warning("rank %d: %s", task.rank, trouble)
            about["trouble"] = [trouble]
        self._store(task.job, "profiles", about)
        del self._waiting[task]  # now `finish` may return

    def _job(self, job: str) -> _Known | None:
        """A job's folder, opened when it is first asked for."""
        url = self._urls().get(job)
        if url is None:
            return None
        known = self._known.get(job)
        if known is None or known.url != url:
            try:
                location = Location.parse(url)
            except StepscopeError as error:
                logger.warning("no synchronized profiles of %s: %s", job, error)
                return None
            known = self._known[job] = _Known(url, location, self._traces(location))
        return known

    def _traces(self, location: Location) -> Path | None:
        """In the job's folder; if that is a bucket, in a folder of this host and user."""
        if location.is_local:
            return Path(location.url) / torch_trace_folder(self._host)
        given = os.environ.get("XDG_STATE_HOME")
        own = Path(given or tempfile.gettempdir()) / f"stepscope-{os.getuid()}"
        try:
            own.mkdir(mode=0o700, parents=True, exist_ok=True)
            trouble = trouble_of(own)
        except OSError as error:
            logger.warning("no synchronized profiles: cannot create %s: %s", own, error.strerror)
            return None
        if trouble is not None:
            logger.warning("no synchronized profiles: %s; %s", trouble.found, trouble.advice)
            return None
        return own / safe_name(location.url) / torch_trace_folder(self._host)

    def _make_room(self, job: str, order: ProfileOrder) -> None:
        """Makes the folder that ranks write to."""
        folder = self.folder(job)
        if folder is None:
            return
        try:
            (folder / order.window).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            logger.warning("cannot create %s: %s", folder, error.strerror)

    def _prune(self) -> None:
        now = time.monotonic()
        if now - self._pruned_at < PRUNE_SECONDS and self._pruned_at:
            return
        self._pruned_at = now
        for folder in filter(None, (known.traces for known in self._known.values())):
            gone = prune(folder, self._settings.profile_gb * 1e9, time.time())
            if gone:
                logger.info("%s: %d old traces deleted", folder, len(gone))


def _asked(order: ProfileOrder) -> Rows:
    return {
        "first_step": [order.first_step], "last_step": [order.last_step],
        "start_ns": [order.asked_ns],
    }  # fmt: skip
