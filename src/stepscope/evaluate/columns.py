"""Removes columns and rows from recorded tables, for `strip` and `collectors`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stepscope.trace import TABLES
from stepscope.window import NULL, Column, Ints, Mask, Strings, Table, Window


def without_tables(window: Window, *names: str) -> Window:
    """The window without these tables."""
    return Window(window.job, {name: table for name, table in window.tables.items()
                               if name not in names})  # fmt: skip


def only_tables(window: Window, *names: str) -> Window:
    """The window with no other tables than these."""
    return without_tables(window, *(name for name in window.tables if name not in names))


def with_tables(window: Window, tables: Mapping[str, Table]) -> Window:
    """The window with these tables replaced; tables that it lacks are not added."""
    kept = {name: tables.get(name, table) for name, table in window.tables.items()}
    return Window(window.job, kept)


def without_columns(window: Window, name: str, *columns: str) -> Window:
    """The window with these columns of a table removed.

    A collector that cannot fill a column leaves it out of the file if it is optional. Otherwise it
    is null in every row (docs/job-folder.md).
    """
    table = window.tables.get(name)
    if table is None:
        return window
    kept = {column: values for column, values in table.columns.items() if column not in columns}
    for column in columns:
        if table.has(column) and column not in TABLES[name].optional:
            kept[column] = _nulls(table.columns[column])
    return with_tables(window, {name: Table({one: kept[one] for one in table.columns
                                             if one in kept})})  # fmt: skip


def _nulls(column: Column) -> Column:
    if isinstance(column, Strings):
        return Strings(np.full(len(column), -1, np.int32), column.values)
    value = np.nan if column.dtype.kind == "f" else NULL
    return np.full(len(column), value, column.dtype if column.dtype.kind == "f" else np.int64)


def rounded(table: Table, unit_ns: int) -> Table:
    """The table with all its times and durations rounded to whole units; halves are rounded up."""
    return Table({name: _whole(column, unit_ns)
                  if name.endswith("_ns") and isinstance(column, np.ndarray) else column
                  for name, column in table.columns.items()})  # fmt: skip


def _whole(column: Ints | np.ndarray, unit_ns: int) -> Ints:
    values = column.astype(np.int64, copy=False)
    known = np.where(values == NULL, 0, values)
    return np.where(values == NULL, NULL, (known + unit_ns // 2) // unit_ns * unit_ns)


def lasts(name: str, table: Table) -> tuple[Ints, Ints]:
    """The beginning and the end of each row; a row without an end ends when it begins."""
    start = table.ints(TABLES[name].time)
    for lasting in ("duration_ns", "window_ns"):
        if table.has(lasting):
            return start, start + table.ints(lasting)
    if table.has("end_ns"):
        end = table.ints("end_ns")
        return start, np.where(end == NULL, start, end)
    return start, start


def of_ranks(table: Table, ranks: Mask) -> Mask:
    """The rows of the chosen ranks, and those of no rank; `ranks` is indexed by rank."""
    rank = table.ints("rank")
    known = np.clip(rank, 0, len(ranks) - 1)
    chosen: Mask = (rank < 0) | (ranks[known] & (rank < len(ranks)))
    return chosen
