"""How much of a job is kept in mind by who follows it: its newest steps, as far as there is room.

Lossy on purpose. Older rows are forgotten, whole steps at a time, and files that hold no others are
not even read. Never forgotten are operators that have not finished: the job may hang on one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepscope.store.layout import (
    GROWS_S,
    added_until_s,
    begun_s,
    is_growing,
    is_merged,
    series,
)
from stepscope.store.location import Entry
from stepscope.trace import TABLES
from stepscope.window import Ints

LEAST_STEPS = 24
"""Kept however many rows they have: methods want 20 (`l2`, `links`), after a tenth of warm-up, and
the newest is not over."""
BYTES_PER_ROW = 8
"""Of 10,240 simulated ranks, in large files: operators 9.5, phases 7.0, steps 4.9, counters 7.1."""
BYTES_PER_FILE = 4000
"""What a file weighs beside its rows: 2 to 7 KB, by its columns."""
CLOCKS_DIFFER_S = 5.0
"""Names and ages of files are by the clocks of hosts and bucket, which NTP keeps far closer."""


@dataclass(frozen=True)
class History:
    """What is kept: what began in the last `seconds` before the newest step, and of that the
    newest steps that together have no more than so many `rows`."""

    seconds: float = 1800.0
    rows: int = 16_000_000
    """22 steps of 10,240 ranks: 1 GB while nobody looks, three times that when somebody does."""


@dataclass(frozen=True)
class Beginning:
    """Where what is kept begins: a moment, and the steps that were under way just then."""

    time_ns: int
    cut_steps: tuple[int, ...] = ()
    """Their rows are forgotten whole: of half a step, ranks would seem to be missing."""

    def kept(self, table: str, piece: pa.Table) -> pa.Table:
        """The rows of one file that are young enough to keep."""
        keep: Any = pc.greater_equal(piece[TABLES[table].time], pa.scalar(self.time_ns, pa.int64()))
        keep = keep.fill_null(True)
        if self.cut_steps and "step" in piece.column_names:
            cut: Any = pc.is_in(piece["step"], value_set=pa.array(self.cut_steps, pa.int64()))
            keep = pc.and_not(keep, cut)
        if table == "comm_ops" and "end_ns" in piece.column_names:
            keep = pc.or_(keep, piece["end_ns"].is_null())
        return piece if pc.all(keep).as_py() else piece.filter(keep).combine_chunks()


def gained_until_s(entries: Iterable[Entry]) -> dict[str, float]:
    """Until when files gained rows, by path; without those whose names do not say so.

    A file ends where its writer began the next one. Who copies files makes them younger, the last
    of each writer by no more than that may have grown.
    """
    found: dict[str, float] = {}
    after: dict[str, float] = {}
    for one in sorted(entries, key=lambda entry: entry.path, reverse=True):
        if is_growing(one.path):
            begun, writer = begun_s(one.path), series(one.path)
            grows = min(added_until_s(one), begun + GROWS_S)
            found[one.path] = min(grows, after.get(writer, grows))
            after[writer] = begun
        elif is_merged(one.path):
            found[one.path] = added_until_s(one)
    return found


def needed_since_s(
    entries: Iterable[Entry], until_s: Mapping[str, float], history: History
) -> float | None:
    """Files that gained no row since then hold none that is kept; None: all may hold some.

    By names and sizes alone, roughly. Files without a name of ours always may, and so may those of
    operators in flight.
    """
    aged = sorted(((until_s[one.path], one.size_bytes) for one in entries if one.path in until_s),
                  reverse=True)  # fmt: skip
    if not aged:
        return None
    rows = np.cumsum([_rows_in(size_bytes) for _, size_bytes in aged])
    fitting = min(int(np.searchsorted(rows, history.rows)), len(aged) - 1)
    newest_s = max(begun_s(path) if is_growing(path) else until for path, until in until_s.items())
    since_s = max(newest_s - history.seconds, aged[fitting][0]) - CLOCKS_DIFFER_S
    return since_s if since_s > aged[-1][0] else None


def _rows_in(size_bytes: int) -> float:
    return max(size_bytes - BYTES_PER_FILE, size_bytes / 4) / BYTES_PER_ROW


def beginning(
    pieces: Mapping[str, Sequence[pa.Table]], history: History, whole_since_s: float | None
) -> Beginning | None:
    """Where to begin so that no more is kept than may be; None: there are no rows.

    Args:
        pieces: what has been read, of all tables.
        whole_since_s: since when rows of all hosts have been read, where older ones were not.
    """
    number, start, end = _steps(pieces.get("steps") or pieces.get("phases") or ())
    rows = sum(piece.num_rows for some in pieces.values() for piece in some)
    if not number.size:
        return _beginning_without_steps(pieces, history)
    begins = _begins(number, start)
    fitting = max(LEAST_STEPS, history.rows * begins.size // max(rows, 1))
    since_ns = int(begins[-1]) - int(history.seconds * 1e9)
    at = max(int(np.searchsorted(begins, since_ns)), begins.size - fitting)
    at = max(min(at, begins.size - LEAST_STEPS), 0)
    if whole_since_s is not None:
        whole = int(np.searchsorted(begins, int((whole_since_s + CLOCKS_DIFFER_S) * 1e9)))
        at = max(at, whole) if whole < begins.size else at
    cut = (start < begins[at]) & (end > begins[at])
    return Beginning(int(begins[at]), tuple(map(int, np.unique(number[cut]))))


def _beginning_without_steps(
    pieces: Mapping[str, Sequence[pa.Table]], history: History
) -> Beginning | None:
    times = _numbers([piece[TABLES[table].time] for table, some in pieces.items()
                      for piece in some])  # fmt: skip
    if not times.size:
        return None
    since_ns = int(times.max()) - int(history.seconds * 1e9)
    if times.size > history.rows:
        newest = np.partition(times, times.size - history.rows)[times.size - history.rows :]
        since_ns = max(since_ns, int(newest.min()))
    return Beginning(since_ns)


def _steps(pieces: Sequence[pa.Table]) -> tuple[Ints, Ints, Ints]:
    """Number, start and end of each row."""
    number, start, took = (_numbers([piece[name] for piece in pieces])
                           for name in ("step", "start_ns", "duration_ns"))  # fmt: skip
    known = (number >= 0) & (start >= 0) & (took >= 0)
    return number[known], start[known], start[known] + took[known]


def _numbers(columns: Sequence[Any]) -> Ints:
    """One after the other; null is -1."""
    none = np.zeros(0, np.int64)
    return np.concatenate([none, *(column.fill_null(-1).to_numpy() for column in columns)])


def _begins(number: Ints, start: Ints) -> Ints:
    """When each step began on the first rank to begin it, in order of time."""
    order = np.lexsort((start, number))
    first = np.flatnonzero(np.diff(number[order], prepend=-1))
    return np.sort(start[order[first]])
