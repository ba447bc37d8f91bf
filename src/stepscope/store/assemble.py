"""Rows of many files to one numpy table, in order, each operator once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from stepscope.store.operators import one_row_each, with_peers
from stepscope.store.order import in_order
from stepscope.trace import TABLES, UNKNOWN_PEER
from stepscope.window import NULL, Column, Strings, Table

_NULL_MEANS: Mapping[str, int] = {"rank": -1, "microbatch": -1, "peer": UNKNOWN_PEER}
"""Integer columns that have a value of their own for "none" or "unknown"."""


def assemble(table: str, pieces: list[pa.Table]) -> Table:
    """One table of all the files' rows, sorted by rank and time.

    Column by column, and the list of pieces is emptied: where nobody else keeps them, each column
    is there once and not three times.
    """
    arrow = _joined(pieces)
    columns = {name: _column(name, arrow.pop(name)) for name in list(arrow)}
    if table == "comm_ops":
        columns = dict(one_row_each(with_peers(Table(columns))).columns)
    return Table(in_order(columns, TABLES[table].time))


def _joined(pieces: list[pa.Table]) -> dict[str, Any]:
    rows = pa.concat_tables(pieces, promote_options="default").unify_dictionaries()
    pieces.clear()
    return dict(zip(rows.column_names, rows.columns, strict=True))


def _column(name: str, column: Any) -> Column:
    if pa.types.is_dictionary(column.type):
        return _strings(column)
    if pa.types.is_floating(column.type):
        return np.asarray(column.fill_null(np.nan).to_numpy(), dtype=np.float64)
    if pa.types.is_boolean(column.type):
        return np.asarray(column.fill_null(False).to_numpy(), dtype=np.bool_)
    if column.null_count:
        column = column.cast(pa.int64()).fill_null(_NULL_MEANS.get(name, int(NULL)))
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _strings(column: Any) -> Strings:
    coded = column.combine_chunks()
    codes = np.asarray(coded.indices.fill_null(-1).to_numpy(), dtype=np.int32)
    values: tuple[str, ...] = tuple(coded.dictionary.to_pylist())
    if len(set(values)) == len(values):
        return Strings(codes, values)
    # another program's dictionary may hold a string twice; here one string has one code
    again = coded.cast(pa.string()).dictionary_encode()
    return _strings(pa.chunked_array([again]))
