"""What the processor itself observes of a window: stacks, phases and counters, for its summary.

Rows pass by on their way into the job folder. Those of a job whose ranks profile are kept in
memory, and written beside the trace as Parquet when it is summarized.

Lossy: of each table the newest `MOST_ROWS` rows are kept.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepscope.store.buffer import concat
from stepscope.store.encode import arrow_table, parquet_bytes
from stepscope.trace import GIL, TABLES
from stepscope.window import NULL, Ints, Mask

OPTIONS = {"stacks": "--stacks", "phases": "--phases", "hardware": "--counters"}
"""Tables, and under which name `stepscope.patterns` takes them."""
MOST_ROWS = 200_000
"""Per job and table; sixteen ranks at 50 Hz with five threads make 80,000 in 20 s. Our choice."""
MARGIN_NS = 1_000_000_000
"""Before and after a window: counters are read once a second."""
_HOST_LEVEL = -1

Rows = Mapping[str, Any]


@dataclass
class _Kept:
    pieces: deque[Rows] = field(default_factory=deque)
    rows: int = 0


class Feed:
    """Rows come from any thread, the rest is called from one."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._lock = threading.Lock()

    def collect(self, job: str, until_s: float) -> None:
        """Keeps rows of a job from now on."""
        self._until[job] = max(until_s, self._until.get(job, until_s))

    def note(self, job: str, table: str, rows: Rows) -> None:
        """Rows of a job that were observed."""
        if job not in self._until or table not in OPTIONS:
            return
        with self._lock:
            kept = self._kept.setdefault((job, table), _Kept())
            kept.pieces.append(rows)
            kept.rows += len(rows["rank"])
            while kept.rows > MOST_ROWS:
                kept.rows -= len(kept.pieces.popleft()["rank"])

    def forget(self, now_s: float) -> None:
        """Drops the rows of jobs whose windows are over."""
        for job in [job for job, until_s in self._until.items() if now_s > until_s]:
            del self._until[job]
            with self._lock:
                self._kept = {key: kept for key, kept in self._kept.items() if key[0] != job}

    def write(
        self, job: str, rank: int, start_ns: int, end_ns: int, folder: Path
    ) -> tuple[str, ...]:
        """Writes what was observed of a rank in a window; returns options of the summary."""
        words: list[str] = []
        for table, option in OPTIONS.items():
            with self._lock:
                kept = self._kept.get((job, table), _Kept())
                pieces = [piece for piece in kept.pieces if _has(piece, rank)]
            rows = _of_window(table, pieces, rank, start_ns - MARGIN_NS, end_ns + MARGIN_NS)
            if rows.num_rows:
                path = folder / f"{table}.parquet"
                path.write_bytes(parquet_bytes(rows))
                words += [option, str(path)]
        return tuple(words)


def _of_window(
    name: str, pieces: Sequence[Rows], rank: int, start_ns: int, end_ns: int
) -> pa.Table:
    """The rows of a rank, and of its host, that overlap with an interval."""
    if not pieces:
        return pa.table({})
    table = concat([arrow_table(name, piece) for piece in pieces])
    begin = _ints(table, TABLES[name].time)
    end = begin + (_ints(table, "duration_ns") if "duration_ns" in table.column_names else 0)
    ranks = _ints(table, "rank")
    ours = (ranks == rank) | (ranks == _HOST_LEVEL)
    chosen: Mask = ours & (begin <= end_ns) & (end >= start_ns)
    if name == "stacks":
        chosen |= ours & _of_last_look(table, begin, end, end_ns)
    return table.take(np.flatnonzero(chosen))


def _of_last_look(table: pa.Table, begin: Ints, end: Ints, until_ns: int) -> Mask:
    """Who held the GIL, in all of the closer look that a window was in.

    When somebody held it is not known: the rows of a look follow each other without a gap, in any
    order (`runs_of_counts`), so what a window needs may lie before it.
    """
    holds: Any = pc.starts_with(table.column("thread").cast(pa.string()), GIL)
    held: Mask = holds.fill_null(False).to_numpy() & (begin <= until_ns)
    begins = begin[held & ~np.isin(begin, end[held])]
    if begins.size:
        held &= begin >= begins.max()
    return held


def _ints(table: pa.Table, column: str) -> Ints:
    """A column as int64; null is the smallest."""
    values: Any = table.column(column)
    numbers: Ints = values.cast(pa.int64()).fill_null(NULL).to_numpy()
    return numbers


def _has(rows: Rows, rank: int) -> bool:
    ranks: Ints = np.asarray(rows["rank"])
    return bool(((ranks == rank) | (ranks == _HOST_LEVEL)).any())
