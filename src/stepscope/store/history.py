"""Limits how much of a job a follower keeps in memory: its newest steps.

Lossy on purpose. Older rows are dropped, whole steps at a time, and files with only older rows are
not read. Unfinished operators are never dropped, because the job may hang on one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

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
"""Kept regardless of their rows: methods need 20 (`l2`, `links`) after a tenth of warm-up, and the
newest step is incomplete."""
BYTES_PER_ROW = 8
"""Measured for 10,240 simulated ranks in large files: operators 9.5, phases 7.0, steps 4.9,
counters 7.1."""
BYTES_PER_FILE = 4000
"""The size of a file without rows: 2 to 7 KB, depending on its columns."""
CLOCKS_DIFFER_S = 5.0
"""Names and ages of files come from clocks of hosts and bucket; NTP keeps these much closer."""


@dataclass(frozen=True)
class History:
    """How much to keep: the last `seconds` before the newest step, and of these the newest steps
    that together have at most `rows` rows."""

    seconds: float = 1800.0
    rows: int = 16_000_000
    """22 steps of 10,240 ranks: 1 GB between diagnoses, three times that during one."""


@dataclass(frozen=True)
class Beginning:
    """The beginning of the kept rows: a time, and the steps in progress at that time."""

    time_ns: int
    cut_steps: tuple[int, ...] = ()
    """All their rows are dropped: in half a step, ranks would seem to be missing."""

    def kept(self, table: str, piece: pa.Table) -> pa.Table:
        """The rows of one file that are recent enough to keep."""
        import pyarrow.compute as pc

        keep: Any = pc.greater_equal(piece[TABLES[table].time], pa.scalar(self.time_ns, pa.int64()))
        keep = keep.fill_null(True)
        if self.cut_steps and "step" in piece.column_names:
            cut: Any = pc.is_in(piece["step"], value_set=pa.array(self.cut_steps, pa.int64()))
            keep = pc.and_not(keep, cut)
        if table == "comm_ops" and "end_ns" in piece.column_names:
            keep = pc.or_(keep, piece["end_ns"].is_null())
        return piece if pc.all(keep).as_py() else piece.filter(keep).combine_chunks()


def gained_until_s(entries: Iterable[Entry]) -> dict[str, float]:
    """Until when each file gained rows, by path; without files whose names do not tell.

    A file ends when its writer began the next one. Copying files changes their modification times,
    so the last file of a writer counts as growing for at most `GROWS_S`.
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
    """The time before which files have no rows to keep; None: every file may have some.

    An estimate from names and sizes. Files without our naming always may have some, and so may
    those of outstanding operators.
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
    """The beginning of the rows to keep; None: there are no rows.

    Args:
        pieces: all rows that were read, by table.
        whole_since_s: since when rows of all hosts were read, if older ones were not.
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
    """Step number, start and end of each row."""
    number, start, took = (_numbers([piece[name] for piece in pieces])
                           for name in ("step", "start_ns", "duration_ns"))  # fmt: skip
    known = (number >= 0) & (start >= 0) & (took >= 0)
    return number[known], start[known], start[known] + took[known]


def _numbers(columns: Sequence[Any]) -> Ints:
    """Concatenates columns; null becomes -1."""
    none = np.zeros(0, np.int64)
    return np.concatenate([none, *(column.fill_null(-1).to_numpy() for column in columns)])


def _begins(number: Ints, start: Ints) -> Ints:
    """The earliest begin of each step on any rank, in order of time."""
    order = np.lexsort((start, number))
    first = np.flatnonzero(np.diff(number[order], prepend=-1))
    return np.sort(start[order[first]])
