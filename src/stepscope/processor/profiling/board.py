"""The folder `control/` of each job, in which processors write and read orders.

A thread of its own lists it: a store may block for seconds. It does so only for jobs that have
ranks here. What is there may be anybody's, so whatever is not an order is skipped, with one line in
the log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TypeVar

from stepscope.errors import StepscopeError, WireError
from stepscope.store.layout import CONTROL, safe_name
from stepscope.store.location import Entry, Location
from stepscope.wire.profiling import ProfileOrder, decode_order, encode_order, order_name

logger = logging.getLogger(__name__)

MOST_BYTES = 1 << 20
"""Of an order: 100,000 ranks take 0.7 MB. Our choice."""
MOST_ORDERS = 1_000
"""Read from one folder at a time. Our choice: a day of budgets is a tenth of that."""
KEPT_SECONDS = 86_400.0
"""Older orders of this host are deleted when it writes the next: listings stay short. Our
choice."""
LONGEST_PAUSE_SECONDS = 60.0
"""Between two attempts to list a folder that cannot be listed. Our choice."""
_IDLE_SECONDS = 60.0


@dataclass(frozen=True)
class Place:
    """Where a job's orders are, and how often they are read."""

    location: Location
    poll_s: float


@dataclass(frozen=True)
class Listed:
    """One look at the orders of a job."""

    job: str
    began_s: float
    """By the monotonic clock."""
    new: tuple[ProfileOrder, ...]


@dataclass
class _Folder:
    due_at: float = 0.0
    failures: int = 0
    seen: dict[str, Entry] = field(default_factory=dict)


class Board:
    """Reads and writes orders on its own thread; the rest is called from another."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._places: Mapping[str, Place] = {}
        self._folders: dict[str, _Folder] = {}
        self._listed: SimpleQueue[Listed] = SimpleQueue()
        self._to_write: SimpleQueue[tuple[Location, ProfileOrder]] = SimpleQueue()
        self._wake = threading.Event()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="stepscope-control", daemon=True)
        self._thread.start()

    def watch(self, places: Mapping[str, Place]) -> None:
        """The jobs that have ranks here, from now on."""
        if places.keys() != self._places.keys():
            self._wake.set()
        self._places = dict(places)

    def write(self, location: Location, order: ProfileOrder) -> None:
        """Has an order written into a job's folder; it is read as others are."""
        self._to_write.put((location, order))
        self._wake.set()

    def listed(self) -> list[Listed]:
        """What was read since the last call."""
        return _emptied(self._listed)

    def close(self) -> None:
        self._stop = True
        self._wake.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stop:
            self._wake.wait(self._pause(time.monotonic()))
            self._wake.clear()
            for location, order in _emptied(self._to_write):
                self._put(location, order)
            self._look(self._places, time.monotonic())

    def _pause(self, now: float) -> float:
        due = [self._folders[job].due_at for job in self._places if job in self._folders]
        return max(min(due, default=now + _IDLE_SECONDS) - now, 0.0)

    def _put(self, location: Location, order: ProfileOrder) -> None:
        """Writes an order, and deletes this host's old ones."""
        try:
            location.put(order_name(order.window), encode_order(order))
            logger.info("%s: asks for profile %s (%s)", location, order.window, order.why)
            oldest_ns = time.time_ns() - round(KEPT_SECONDS * 1e9)
            ours = f"-{safe_name(self._host)[:60]}.json"
            for entry in location.files(CONTROL):
                if entry.path.endswith(ours) and entry.modified_ns < oldest_ns:
                    location.delete(entry.path)
        except StepscopeError as error:
            logger.warning("no synchronized profile: %s", error)

    def _look(self, places: Mapping[str, Place], now: float) -> None:
        self._folders = {job: self._folders.get(job, _Folder()) for job in places}
        for job, folder in self._folders.items():
            if now < folder.due_at:
                continue
            try:
                self._read(job, places[job].location, folder)
                folder.failures = 0
            except StepscopeError as error:
                if not folder.failures:
                    logger.warning("orders to profile are not read: %s", error)
                folder.failures += 1
            pause = places[job].poll_s * 2 ** min(folder.failures, 10)
            folder.due_at = time.monotonic() + min(pause, LONGEST_PAUSE_SECONDS)

    def _read(self, job: str, location: Location, folder: _Folder) -> None:
        """Reads the orders that are new or were replaced."""
        began_s = time.monotonic()
        listed = {entry.path: entry for entry in location.files(CONTROL)}
        new = [entry for path, entry in listed.items() if folder.seen.get(path) != entry]
        orders = [self._order(location, entry) for entry in new[:MOST_ORDERS]]
        self._listed.put(Listed(job, began_s, tuple(one for one in orders if one is not None)))
        folder.seen = listed

    def _order(self, location: Location, entry: Entry) -> ProfileOrder | None:
        data = location.get(entry.path) if entry.size_bytes <= MOST_BYTES else b""
        if data is None:
            return None
        try:
            order = decode_order(data)
            if entry.path != order_name(order.window):
                raise WireError("its name is that of another window")
        except WireError as error:
            logger.warning("%s/%s is skipped: %s", location, entry.path, error)
            return None
        return order


_Item = TypeVar("_Item")


def _emptied(queue: SimpleQueue[_Item]) -> list[_Item]:
    found = []
    while True:
        try:
            found.append(queue.get_nowait())
        except Empty:
            return found
