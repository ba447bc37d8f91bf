"""Merges the many small files of a job into few large sorted ones, while it runs or afterwards.

Buckets have no locks and no renames, so a merged file is put first, then the files in it are
deleted. `merged` explains how readers count each row once, also with other compactors at work and
after a crash at any point. The next compaction deletes what a crash left.

A host's processor merges that host's files only and keeps them under its name; `stepscope compact`
merges those of all hosts. Files of other programs, or with columns unknown to this version, are
left as they are.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from stepscope.store.encode import parquet_bytes
from stepscope.store.layout import (
    added_until_s,
    begun_s,
    is_growing,
    is_merged,
    merged_folder,
    merged_name,
    merged_s,
    table_folder,
)
from stepscope.store.listing import list_table
from stepscope.store.location import Entry, Location
from stepscope.store.merged import shares, stored_claims
from stepscope.store.merging import Piece, merge, piece_of
from stepscope.trace import TABLES

QUIET_S = 120.0
"""A growing file that was not modified for this long gains no more rows: `writer` closes files
after 60 s, and after twice that in any case."""
SETTLED_S = 3600.0
"""A merged file may be merged again at this age: `listing` relies on a listing taking less time."""
TARGET_BYTES = 16 << 20
"""Files up to half of this are merged, into about this: three million rows. Merging 8,960
files of 10,240 ranks into 17 took 625 MB of memory at its peak."""
_DAY_S = 86_400.0
"""Rows of one day stay together, so that retention can drop a day and keep the next."""
_THREADS = 8


@dataclass(frozen=True)
class Compacted:
    """What was done: files merged, files created, and leftovers of a crash deleted."""

    merged: int = 0
    into: int = 0
    leftovers: int = 0

    def __add__(self, other: Compacted) -> Compacted:
        return Compacted(
            self.merged + other.merged, self.into + other.into, self.leftovers + other.leftovers
        )


def compact(
    location: Location, host: str | None = None, *, least: int = 2, quiet_s: float = QUIET_S,
    now_s: float | None = None,
) -> Compacted:  # fmt: skip
    """Merges the quiet files of every table, of one host or of all.

    Args:
        least: fewer files than this are not merged.

    Raises:
        SourceError, StoreError: the store cannot be read or written. What was merged until then
            stays merged, and nothing is lost.
    """
    now_s = time.time() if now_s is None else now_s
    total = Compacted()
    for table in sorted(set(location.top()[0]) & set(TABLES)):
        total += _compact_table(location, table, host, least, quiet_s, now_s)
    return total


def listed(location: Location, table: str, host: str | None) -> list[Entry]:
    """The growing and merged files of a table, of one host or of all."""
    if host is None:
        entries = list_table(location, table)
    else:
        folders = (table_folder(table, host), merged_folder(table, host))
        entries = [entry for folder in folders for entry in location.files(folder)]
    return [entry for entry in entries if is_growing(entry.path) or is_merged(entry.path)]


def _compact_table(
    location: Location, table: str, host: str | None, least: int, quiet_s: float, now_s: float
) -> Compacted:
    entries = listed(location, table, host)
    quiet = [entry for entry in entries if _is_quiet(entry, quiet_s, now_s)]
    wanted = {entry for batch in batches(quiet, least, now_s) for entry in batch}
    leftovers = _leftovers(location, entries, {e for e in quiet if is_growing(e.path)} | wanted)
    _delete(location, leftovers)
    done = Compacted(leftovers=len(leftovers))
    for batch in batches(set(quiet).difference(leftovers), least, now_s):
        done += _merge(location, table, host, batch, now_s)
    return done


def _is_quiet(entry: Entry, quiet_s: float, now_s: float) -> bool:
    if is_merged(entry.path):
        return now_s - merged_s(entry.path)[0] >= SETTLED_S
    return now_s - entry.modified_ns / 1e9 >= quiet_s


def batches(quiet: Iterable[Entry], least: int, now_s: float) -> list[list[Entry]]:
    """Groups of files to merge: files of one day, in order of time, up to the target size.

    A group of today needs `least` files, one of a past day needs two.
    """
    found: list[list[Entry]] = []
    size, day = 0, 0
    for entry in sorted(quiet, key=lambda one: (_moment_s(one), one.path)):
        if entry.size_bytes > TARGET_BYTES / 2:
            continue
        if not found or size + entry.size_bytes > TARGET_BYTES or _day(entry) != day:
            found.append([])
            size, day = 0, _day(entry)
        found[-1].append(entry)
        size += entry.size_bytes
    today = now_s // _DAY_S
    return [one for one in found if len(one) >= (least if _day(one[0]) == today else 2)]


def _day(entry: Entry) -> int:
    return int(_moment_s(entry) // _DAY_S)


def _moment_s(entry: Entry) -> float:
    """The time of a file by its host's clock, which is accurate enough to assign days."""
    return merged_s(entry.path)[1] if is_merged(entry.path) else begun_s(entry.path)


def _leftovers(location: Location, entries: list[Entry], suspects: set[Entry]) -> list[Entry]:
    """Files whose rows are all in merged ones: their compactor was stopped before deleting them."""
    oldest_s = min(map(added_until_s, suspects), default=float("inf"))
    # moments in names are whole seconds, rounded down
    may_hold = [e for e in entries if is_merged(e.path) and added_until_s(e) + 1 >= oldest_s]
    claims = {entry.path: stored_claims(location, entry) for entry in may_hold}
    known = {path: one for path, one in claims.items() if one is not None}
    counting = shares([entry.path for entry in entries], known)
    replaced = [entry for entry in entries if entry.path not in counting]
    partly = [e for e in suspects if e.path in counting and counting[e.path].skip]
    return [*replaced, *(e for e in partly if _is_held(location, e, counting[e.path].skip))]


def _is_held(location: Location, entry: Entry, rows: int) -> bool:
    piece = piece_of(location, entry.path)
    return piece is not None and len(piece) <= rows


def _merge(
    location: Location, table: str, host: str | None, batch: list[Entry], now_s: float
) -> Compacted:
    with ThreadPoolExecutor(_THREADS) as pool:
        read = list(pool.map(lambda entry: piece_of(location, entry.path), batch))
    pieces: list[Piece] = [piece for piece in read if piece is not None]
    if len(pieces) < 2:
        return Compacted()
    taken = {piece.path for piece in pieces}
    entries = [entry for entry in batch if entry.path in taken]
    name = merged_name(now_s, max(map(added_until_s, entries)), secrets.token_hex(4))
    location.put(f"{merged_folder(table, host)}/{name}", parquet_bytes(merge(table, pieces)))
    _delete(location, entries)
    return Compacted(merged=len(entries), into=1)


def _delete(location: Location, entries: list[Entry]) -> None:
    """Deletes files that are unchanged since they were read. A file that gained rows stays, and
    readers take the new rows from it."""
    folders = {entry.path.rpartition("/")[0] for entry in entries}
    # few folders are listed one by one, many at once: requests to a bucket are what costs
    if len(folders) > _THREADS:
        folders = {entry.path.partition("/")[0] for entry in entries}
    now = {entry for folder in folders for entry in location.files(folder)}
    with ThreadPoolExecutor(_THREADS) as pool:
        same = [entry.path for entry in entries if entry in now]
        list(pool.map(location.delete, same))
