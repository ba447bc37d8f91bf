"""Writes trace files: concatenated gzip members.

On a disk each member is appended as it comes, so a file exists while its minute runs. An incomplete
member, which readers cannot handle, is truncated: immediately if the disk is full, by the next
processor if one was killed. Objects in a bucket cannot grow: there members wait in memory until
their window is over, and are put at once.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from stepscope.errors import StoreError
from stepscope.store.location import Location

MOST_BYTES = 64 << 20
"""Most bytes waiting for a bucket: two minutes of eight ranks with 1e5 kernels per minute."""
_GZIP = 31
"""zlib's code for a gzip header and its largest window."""
RETRY_SECONDS = 30.0
"""Pause after a failed put: a request to a bucket that does not respond blocks for long."""


class TraceFiles:
    """The trace files of one job folder that one processor writes."""

    def __init__(self, location: Location, clock: Callable[[], float] = monotonic) -> None:
        self._location = location
        self._clock = clock
        self._waiting: dict[tuple[int, str], list[bytes]] = {}
        self._bytes = 0
        self._retry_at = 0.0
        self._mended: set[Path] = set()

    def add(self, path: str, window: int, member: bytes) -> None:
        """Adds a member to a file of a window.

        Raises:
            StoreError: the disk cannot be written, or too much waits for the bucket.
        """
        if self._location.is_local:
            self._append(path, member)
            return
        if self._bytes + len(member) > MOST_BYTES:
            raise StoreError(f"cannot write {self._location}/{path}: too many traces wait for it")
        self._waiting.setdefault((window, path), []).append(member)
        self._bytes += len(member)

    def settle(self, oldest: int) -> None:
        """Stores the files of windows before this one.

        Raises:
            StoreError: the bucket cannot be written; it is tried again later.
        """
        if self._clock() < self._retry_at:
            return
        for window, path in sorted(self._waiting):
            if window < oldest:
                self._put(window, path)

    def _put(self, window: int, path: str) -> None:
        data = b"".join(self._waiting[window, path])
        try:
            self._location.put(path, data)
        except StoreError:
            self._retry_at = self._clock() + RETRY_SECONDS
            raise
        self._bytes -= len(data)
        del self._waiting[window, path]

    def _append(self, path: str, member: bytes) -> None:
        file = Path(self._location.url) / path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._mend(file.parent)
            with file.open("ab", buffering=0) as to:
                _whole_or_not_at_all(to.fileno(), member)
        except OSError as error:
            raise StoreError(f"cannot write {file}: {error.strerror or error}") from error

    def _mend(self, folder: Path) -> None:
        """Truncates the newest file that others left in a folder, before our first write there."""
        if folder in self._mended:
            return
        self._mended.add(folder)
        for file in sorted(folder.glob("*.gz"))[-1:]:
            data = file.read_bytes()
            if (whole := whole_members(data)) < len(data):
                os.truncate(file, whole)


def whole_members(data: bytes) -> int:
    """The number of bytes up to the end of the last complete member."""
    at = 0
    while at < len(data):
        unpacking = zlib.decompressobj(_GZIP)
        try:
            unpacking.decompress(data[at:])
        except zlib.error:
            break
        if not unpacking.eof:
            break
        at = len(data) - len(unpacking.unused_data)
    return at


def _whole_or_not_at_all(descriptor: int, data: bytes) -> None:
    """Writes all data or none: an incomplete member would make all following ones unreadable."""
    before = os.fstat(descriptor).st_size
    written = 0
    try:
        while written < len(data):
            written += os.write(descriptor, data[written:])
    except OSError:
        os.ftruncate(descriptor, before)
        raise
