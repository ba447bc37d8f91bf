"""Deletes the oldest files of a job, by age or by total size.

Lossy on purpose: rows and traces are deleted, but never job.json and its fragments, files that
still grow, or files of other programs. All tables begin at about the same time afterwards, because
the oldest files go first, whatever their table.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from stepscope.errors import FormatError
from stepscope.store.compact import QUIET_S, listed
from stepscope.store.layout import (
    TRACES,
    added_until_s,
    fragment_path,
    host_trace_folder,
    is_merged,
    trace_folder,
)
from stepscope.store.location import Entry, Location
from stepscope.trace import TABLES
from stepscope.trace.parsing import parse_job

_THREADS = 8


@dataclass(frozen=True)
class Keep:
    """How much of a job to keep; None: no limit. With a host the limits apply to its files."""

    seconds: float | None = None
    size_bytes: int | None = None

    def __bool__(self) -> bool:
        return self.seconds is not None or self.size_bytes is not None


def prune(
    location: Location, keep: Keep, host: str | None = None, now_s: float | None = None
) -> int:
    """Deletes files beyond the limits, of one host or of the whole job; returns their number.

    Raises:
        SourceError, StoreError: the store cannot be read or written.
    """
    if not keep:
        return 0
    gone = expired(files(location, host), keep, time.time() if now_s is None else now_s)
    # small files first: rows of a small file would count again without its merged file
    gone.sort(key=lambda entry: (is_merged(entry.path), added_until_s(entry)))
    small = [entry.path for entry in gone if not is_merged(entry.path)]
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(location.delete, small))
        list(pool.map(location.delete, (e.path for e in gone if is_merged(e.path))))
    return len(gone)


def files(location: Location, host: str | None) -> list[Entry]:
    """The files that may be deleted: rows and traces, of one host or of all."""
    there = set(location.top()[0])
    rows = [e for table in sorted(there & set(TABLES)) for e in listed(location, table, host)]
    if TRACES not in there:
        return rows
    folders = [TRACES] if host is None else _trace_folders(location, host)
    return [*rows, *(entry for folder in folders for entry in location.files(folder))]


def _trace_folders(location: Location, host: str) -> list[str]:
    return [host_trace_folder(host), *(trace_folder(rank) for rank in _ranks(location, host))]


def _ranks(location: Location, host: str) -> list[int]:
    """The ranks that a host recorded."""
    data = location.get(fragment_path(host))
    try:
        job = None if data is None else parse_job(data)
    except FormatError:
        return []
    return [] if job is None else [rank for one in job.hosts for rank in one.ranks]


def expired(entries: Iterable[Entry], keep: Keep, now_s: float) -> list[Entry]:
    """The files to delete, oldest first."""
    quiet = sorted(
        (e for e in entries if now_s - added_until_s(e) >= QUIET_S), key=added_until_s, reverse=True
    )
    gone = []
    size = 0
    for entry in quiet:
        size += entry.size_bytes
        too_old = keep.seconds is not None and now_s - added_until_s(entry) > keep.seconds
        too_much = keep.size_bytes is not None and size > keep.size_bytes
        if too_old or too_much:
            gone.append(entry)
    return gone[::-1]
