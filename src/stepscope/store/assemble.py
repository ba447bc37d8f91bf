"""Rows of many files to one numpy table, in order, each operator once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stepscope.store.operators import one_row_each, with_peers
from stepscope.trace import TABLES, UNKNOWN_PEER
from stepscope.window import NULL, Column, Ints, Strings, Table

_NULL_MEANS: Mapping[str, int] = {"rank": -1, "microbatch": -1, "peer": UNKNOWN_PEER}
"""Integer columns that have a value of their own for "none" or "unknown"."""


def assemble(table: str, pieces: list[pa.Table]) -> Table:
    """One table of all the files' rows, sorted by rank and time."""
    rows = pa.concat_tables(pieces, promote_options="default").unify_dictionaries()
    whole = Table({name: _column(name, rows[name]) for name in rows.column_names})
    if table == "comm_ops":
        whole = one_row_each(with_peers(whole))
    return _sorted(whole, TABLES[table].time)


def recent(table: str, piece: pa.Table, since_ns: int) -> pa.Table:
    """The rows of one file that are young enough to keep.

    An operator that never finished stays however old it is: it may be what the job hangs on.
    """
    time: Any = piece[TABLES[table].time]
    keep: Any = pc.greater_equal(time, pa.scalar(since_ns, pa.int64())).fill_null(True)
    if table == "comm_ops" and "end_ns" in piece.column_names:
        keep = pc.or_(keep, piece["end_ns"].is_null())
    return piece if pc.all(keep).as_py() else piece.filter(keep).combine_chunks()


def _column(name: str, column: Any) -> Column:
    if pa.types.is_dictionary(column.type):
        return _strings(column)
    if pa.types.is_floating(column.type):
        return np.asarray(column.fill_null(np.nan).to_numpy(), dtype=np.float64)
    if pa.types.is_boolean(column.type):
        return np.asarray(column.fill_null(False).to_numpy(), dtype=np.bool_)
    filled = column.cast(pa.int64()).fill_null(_NULL_MEANS.get(name, int(NULL)))
    return np.asarray(filled.to_numpy(), dtype=np.int64)


def _strings(column: Any) -> Strings:
    coded = column.combine_chunks()
    codes = np.asarray(coded.indices.fill_null(-1).to_numpy(), dtype=np.int32)
    values: tuple[str, ...] = tuple(coded.dictionary.to_pylist())
    if len(set(values)) == len(values):
        return Strings(codes, values)
    # another program's dictionary may hold a string twice; here one string has one code
    again = coded.cast(pa.string()).dictionary_encode()
    return _strings(pa.chunked_array([again]))


def _sorted(table: Table, time: str) -> Table:
    ranks, times = table.ints("rank"), table.ints(time)
    if _is_sorted(ranks, times):
        return table
    return table.take(np.lexsort((times, ranks)))


def _is_sorted(ranks: Ints, times: Ints) -> bool:
    same, later = ranks[1:] == ranks[:-1], times[1:] >= times[:-1]
    return bool(np.all((ranks[1:] > ranks[:-1]) | (same & later)))
