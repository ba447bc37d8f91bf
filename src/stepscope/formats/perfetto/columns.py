"""Columns of tables from the rows of tracks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from stepscope.window import NULL, Column, Ints, Strings, Table, joined, unknown


def by_name(names: Strings, read: Callable[[str], int], unnamed: int = NULL) -> Ints:
    """A number for each row, read from its name."""
    found = np.array([*map(read, names.values), unnamed], np.int64)
    return found[names.codes]


def same(text: str | None, count: int) -> Strings:
    """A column with one text in all rows; None: null."""
    values = () if text is None else (text,)
    return Strings(np.full(count, len(values) - 1, np.int32), values)


def table(rank: int, rows: Table, columns: Mapping[str, Column], *details: str) -> Table:
    """A rank's rows: these columns, and those of the details that were recorded."""
    found: dict[str, Column] = {"rank": np.full(len(rows), rank), **columns}
    return Table(found | {name: rows.ints(name) for name in details if rows.has(name)})


def durations(rows: Table) -> dict[str, Column]:
    begin = rows.ints("begin_ns")
    return {"start_ns": begin, "duration_ns": rows.ints("end_ns") - begin}


def together(tables: Sequence[Table]) -> Table:
    """Concatenates tables; a column that one of them lacks is null there."""
    like = {name: column for one in tables for name, column in one.columns.items()}
    return joined([Table({name: one.columns[name] if one.has(name) else unknown(column, len(one))
                          for name, column in like.items()}) for one in tables])  # fmt: skip
