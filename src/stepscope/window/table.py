"""Tables of numpy columns, and a job with its recorded tables.

A `Table` is a bundle of equally long numpy columns. Integers that may be null hold `NULL` (the
smallest int64), because nanoseconds since 1970 do not fit a float64. Strings are dictionary-coded,
because at ten thousand ranks a table has millions of rows and a few hundred names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.trace import Job, ProcessGroup
from stepscope.window.gathering import gathered

NULL = np.iinfo(np.int64).min
"""Stands for null in integer columns."""

UNKNOWN_STEP = -1
"""The number of an unknown step; smaller ones are those of a baseline."""

PART = 2**17
"""Rows of a part: a megabyte per column."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]


FEW = 8
"""Up to this many words, comparing each with all rows is faster than a lookup per row (measured:
0.3 against 4.1 ms per million rows for one word)."""


def distinct(values: NDArray[np.signedinteger[Any]]) -> Ints:
    """The distinct values in order.

    Most columns hold runs of equal values, of which one each is enough. Without `return_counts`,
    `np.unique` imports `numpy.ma` when first called: 15 ms and 3 MB.
    """
    first = np.ones(min(values.size, 1), np.bool_)
    runs = values[np.concatenate((first, values[1:] != values[:-1]))]
    return np.unique(runs, return_counts=True)[0].astype(np.int64, copy=False)


@dataclass(frozen=True)
class Strings:
    """A column of strings: row i is `values[codes[i]]`, or null where the code is -1."""

    codes: NDArray[np.int32]
    values: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str | None:
        code = int(self.codes[row])
        return None if code < 0 else self.values[code]

    def equals(self, *wanted: str) -> Mask:
        """Which rows hold one of the given strings."""
        hits = self.among(*wanted)
        codes = np.flatnonzero(hits).tolist()
        if len(codes) > FEW:
            return np.asarray(hits.take(self.codes))
        if not codes:
            return np.zeros(len(self.codes), np.bool_)
        rows: Mask = self.codes == codes[0]
        for code in codes[1:]:
            rows |= self.codes == code
        return rows

    def among(self, *wanted: str) -> Mask:
        """Which codes stand for one of the given strings; the last one is for null, whose code
        is -1."""
        names = frozenset(wanted)
        return np.array([*(value in names for value in self.values), False])

    def named(self, rows: Mask) -> frozenset[str]:
        """The strings of the given rows."""
        found = np.zeros(len(self.values) + 1, np.bool_)
        found[self.codes[rows]] = True  # the last one is for null, whose code is -1
        return frozenset(self.values[code] for code in np.flatnonzero(found[:-1]).tolist())

    def take(self, rows: Rows | Mask | slice) -> Strings:
        if isinstance(rows, slice) or rows.dtype == np.bool_:
            return Strings(self.codes[rows], self.values)
        return Strings(gathered(self.codes, rows), self.values)

    @classmethod
    def of(cls, items: list[str | None]) -> Strings:
        """Encodes a list; for tests and small tables."""
        values = tuple(dict.fromkeys(item for item in items if item is not None))
        index: dict[str | None, int] = {value: code for code, value in enumerate(values)}
        return cls(np.array([index.get(i, -1) for i in items], dtype=np.int32), values)

    @classmethod
    def joined(cls, parts: Sequence[Strings]) -> Strings:
        """Concatenates columns."""
        values = tuple(dict.fromkeys(value for part in parts for value in part.values))
        index = {value: code for code, value in enumerate(values)}
        codes = []
        for part in parts:
            here = np.array([*(index[value] for value in part.values), -1], np.int32)
            codes.append(here[part.codes])
        return cls(np.concatenate(codes), values)


Column = Ints | Floats | Mask | Strings


def known_steps(steps: Ints) -> Mask:
    """Which steps have a number."""
    return np.asarray((steps != UNKNOWN_STEP) & (steps != NULL))


def taken(column: Column, rows: Rows | slice) -> Column:
    """The given rows of a column; adjacent rows, given by a slice, are not copied."""
    if isinstance(column, Strings):
        return column.take(rows)
    return column[rows] if isinstance(rows, slice) else gathered(column, rows)


class _Taken(Mapping[str, Column]):
    """Some rows of other columns, each copied when it is first accessed.

    A method uses a few columns of some rows: copying all columns of a table with millions of rows
    would cost more than the method.
    """

    def __init__(self, columns: Mapping[str, Column], rows: Rows | slice, count: int) -> None:
        self.rows = count
        self._columns, self._at = columns, rows
        self._taken: dict[str, Column] = {}

    def __getitem__(self, name: str) -> Column:
        column = self._taken.get(name)
        if column is None:
            column = self._taken[name] = taken(self._columns[name], self._at)
        return column

    def some(self, rows: Rows) -> _Taken:
        """Some of these rows, taken from where these are: a column that only they need is not
        copied for all."""
        at = self._at
        rows = rows + at.start if isinstance(at, slice) else at[rows]
        return _Taken(self._columns, rows, len(rows))

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __reduce__(self) -> tuple[type, tuple[dict[str, Column]]]:
        """Pickles only these rows, not the columns that they were taken from."""
        return dict, (dict(self),)


@dataclass(frozen=True)
class Table:
    """Columns of the same length. A missing column is unknown; see `has`."""

    columns: Mapping[str, Column]

    def __len__(self) -> int:
        if isinstance(self.columns, _Taken):
            return self.columns.rows
        return next((len(column) for column in self.columns.values()), 0)

    def has(self, *names: str) -> bool:
        return all(name in self.columns for name in names)

    def knows(self, name: str) -> bool:
        """Whether a column of numbers is there and has a value in any row."""
        return self.has(name) and bool((self.ints(name) != NULL).any())

    def ints(self, name: str) -> Ints:
        return self.numbers(name).astype(np.int64, copy=False)

    def floats(self, name: str) -> Floats:
        return self.numbers(name).astype(np.float64, copy=False)

    def numbers(self, name: str) -> NDArray[Any]:
        """A column of numbers as it is kept; ranks and peers, for one, take four bytes each."""
        column = self.columns[name]
        assert isinstance(column, np.ndarray), f"{name} is a column of strings"
        return column

    def mask(self, name: str) -> Mask:
        return self.ints(name).astype(np.bool_)

    def strings(self, name: str) -> Strings:
        column = self.columns[name]
        assert isinstance(column, Strings), f"{name} is a column of numbers"
        return column

    def take(self, rows: Rows | Mask) -> Table:
        """The given rows (a mask or indices), in that order; columns are copied on access."""
        if rows.dtype == np.bool_:
            return self if rows.all() else self.take(np.flatnonzero(rows))
        rows = np.asarray(rows, dtype=np.intp)
        if isinstance(self.columns, _Taken):
            return Table(self.columns.some(rows))
        return Table(_Taken(self.columns, rows, len(rows)))

    def parts(self) -> Iterator[tuple[slice, Table]]:
        """Splits the table into parts, at least one, each with its slice of rows.

        Intermediate results of a part stay in the CPU cache: for millions of rows, fresh memory
        costs more than the computation.
        """
        for first in range(0, max(len(self), 1), PART):
            stop = min(first + PART, len(self))
            yield slice(first, stop), self.part(first, stop)

    def part(self, first: int, stop: int) -> Table:
        """Adjacent rows, without a copy."""
        return Table(_Taken(self.columns, slice(first, stop), stop - first))

    def with_column(self, name: str, column: Column) -> Table:
        return Table({**self.columns, name: column})

    def per_rank(self) -> Iterator[tuple[int, Table]]:
        """Every rank that has rows, with its rows."""
        if not len(self):
            return  # numpy would return one empty part
        ranks = self.ints("rank")
        order = np.argsort(ranks, kind="stable")
        values, starts = np.unique(ranks[order], return_index=True)
        for value, rows in zip(values, np.split(order, starts[1:]), strict=True):
            yield int(value), self.take(rows)


def joined(tables: Sequence[Table]) -> Table:
    """Concatenates tables with the same columns."""
    names = tables[0].columns
    return Table({name: _joined([table.columns[name] for table in tables]) for name in names})


def unknown(like: Column, rows: int) -> Column:
    """As many unknown values, as a column of the same kind."""
    if isinstance(like, Strings):
        return Strings(np.full(rows, -1, np.int32), ())
    if like.dtype.kind == "f":
        return np.full(rows, np.nan)
    return np.zeros(rows, np.bool_) if like.dtype.kind == "b" else np.full(rows, NULL)


def _joined(parts: Sequence[Column]) -> Column:
    words = [part for part in parts if isinstance(part, Strings)]
    if words:
        return Strings.joined(words)
    return np.concatenate([part for part in parts if isinstance(part, np.ndarray)])


@dataclass(frozen=True)
class Window:
    """A job and its recorded tables. A table that was not collected is absent."""

    job: Job
    tables: Mapping[str, Table] = field(default_factory=dict)

    def table(self, name: str) -> Table | None:
        """The table if it was collected and has rows, else None."""
        table = self.tables.get(name)
        return table if table is not None and len(table) else None

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Every rank in any table, without host-level rows (rank -1)."""
        tables = self.tables.values()
        found = [distinct(table.numbers("rank")) for table in tables if table.has("rank")]
        ranks = distinct(np.concatenate([np.zeros(0, np.int64), *found]))
        return tuple(ranks[ranks >= 0].tolist())

    @cached_property
    def groups(self) -> tuple[ProcessGroup, ...]:
        """The job's process groups; if none are known, all ranks are one group `dp-0`."""
        return self.job.groups or (ProcessGroup("dp-0", "dp", self.ranks),)

    def host_of(self, rank: int) -> str | None:
        return self.job.host_of(rank)
