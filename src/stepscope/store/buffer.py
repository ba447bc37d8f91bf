"""Buffers the rows of one table until they are stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from stepscope.trace import TABLES


@dataclass
class Chunks:
    """Rows in order. Small pieces are merged as they come: after a million appends of one row, each
    row was copied a logarithmic number of times, and there are few objects."""

    pieces: list[pa.Table] = field(default_factory=list)
    rows: int = 0

    def add(self, piece: pa.Table) -> None:
        self.rows += piece.num_rows
        self.pieces.append(piece)
        while len(self.pieces) > 1 and self.pieces[-2].num_rows <= 2 * self.pieces[-1].num_rows:
            last = self.pieces.pop()
            self.pieces[-1] = concat([self.pieces[-1], last])

    def drop_oldest(self, count: int) -> pa.Table:
        """Removes and returns rows from the front, without copying the rest."""
        dropped, left = [], count
        while left and left >= self.pieces[0].num_rows:
            dropped.append(self.pieces.pop(0))
            left -= dropped[-1].num_rows
        if left:
            dropped.append(self.pieces[0].slice(0, left))
            self.pieces[0] = self.pieces[0].slice(left)
        self.rows -= count
        return concat(dropped)


def concat(pieces: list[pa.Table]) -> pa.Table:
    """Concatenates pieces; a column that some lack is null there."""
    return pa.concat_tables(pieces, promote_options="default").combine_chunks()


@dataclass(frozen=True)
class Loss:
    """The number of lost rows of one rank, and their interval."""

    start_ns: int
    end_ns: int
    rows: int

    def __add__(self, other: Loss) -> Loss:
        return Loss(
            min(self.start_ns, other.start_ns),
            max(self.end_ns, other.end_ns),
            self.rows + other.rows,
        )


def losses_by_rank(table: str, dropped: pa.Table) -> dict[int, Loss]:
    """The losses from dropping these rows, by rank."""
    ranks: Any = dropped["rank"]
    times: Any = dropped[TABLES[table].time]
    grouped = pa.table({"rank": ranks.fill_null(-1), "time": times.fill_null(0)})
    rows: list[dict[str, Any]] = (
        grouped.group_by("rank")
        .aggregate([("time", "min"), ("time", "max"), ("time", "count")])
        .to_pylist()
    )
    return {row["rank"]: Loss(row["time_min"], row["time_max"], row["time_count"]) for row in rows}


@dataclass
class TableBuffer:
    """One table: pending rows, and the rows of the file that is still growing.

    The growing file is rewritten with every flush, so its rows stay in memory until the next file
    begins.
    """

    table: str
    pending: Chunks = field(default_factory=Chunks)
    stored: pa.Table | None = None
    file: str | None = None
    opened_s: float = 0.0
    certain: bool = True
    """Whether the last put of the file succeeded. A failed put may still have been executed: the
    file must be put again under the same name, or its rows might exist twice."""
    dropped: dict[int, Loss] = field(default_factory=dict)

    def bound(self, max_rows: int) -> int:
        """Drops the oldest pending rows beyond the bound; returns how many."""
        excess = self.pending.rows - max_rows
        if excess <= 0:
            return 0
        for rank, loss in losses_by_rank(self.table, self.pending.drop_oldest(excess)).items():
            self.dropped[rank] = loss + self.dropped[rank] if rank in self.dropped else loss
        return excess

    def take_pending(self) -> Chunks:
        taken, self.pending = self.pending, Chunks()
        return taken

    def give_back(self, taken: Chunks) -> None:
        """Puts rows that could not be stored in front of those added since."""
        later = self.pending.pieces
        self.pending = taken
        for piece in later:
            self.pending.add(piece)


@dataclass
class Replacement:
    """A small file that is always replaced by the newest rows: wanted and stored contents."""

    wanted: pa.Table | None
    stored: pa.Table | None = None
    known: bool = False

    def is_stored(self, wanted: pa.Table | None) -> bool:
        if not self.known:
            return False
        if wanted is None or self.stored is None:
            return wanted is self.stored
        return bool(self.stored.equals(wanted))
