"""Encodes rows as Arrow tables and Parquet files, by the schemas in `trace.TABLES`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stepscope.trace import TABLES
from stepscope.window import NULL, Strings, Table

Values = Sequence[Any] | NDArray[Any] | Strings
Rows = Mapping[str, Values]
"""Column name to values; null is None in a list, `NULL` and not a number in an array."""

ARROW_TYPES: Mapping[str, Any] = {
    "int64": pa.int64(),
    "int32": pa.int32(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    # dictionary-coded in memory too: a thousand equal call stacks take the space of one
    "str": pa.dictionary(pa.int32(), pa.string()),
}

Codec = Literal["zstd", "snappy"]
PACKED: Codec = "zstd"
QUICK: Codec = "snappy"
"""For files that are soon rewritten: takes two thirds of the time, since zstd sets up a compressor
per column. Numbers and names get at most a third larger, call stacks twice (measured)."""


def rows_of(name: str, table: Table) -> Rows:
    """A table's columns as rows; required columns that it lacks are null in every row."""
    spec = TABLES[name]
    unknown = {column: [None] * len(table) for column in spec.columns.keys() - spec.optional}
    return {**unknown, **{one: table.columns[one] for one in spec.columns if table.has(one)}}


def arrow_table(table: str, rows: Rows) -> pa.Table:
    """The given columns in the table's order and types.

    Columns that are not given stay absent, which differs from null: a column `end_ns` of nulls
    means operators that never finished, and no such column means that ends were not recorded.
    """
    spec = TABLES[table]
    unknown = rows.keys() - spec.columns.keys()
    assert not unknown, f"table {table} has no columns {sorted(unknown)}"
    missing = spec.columns.keys() - spec.optional - rows.keys()
    assert not missing, f"rows of {table} lack the columns {sorted(missing)}"
    lengths = {name: len(values) for name, values in rows.items()}
    assert len(set(lengths.values())) == 1, f"columns of {table} differ in length: {lengths}"
    return pa.table({n: _array(rows[n], kind) for n, kind in spec.columns.items() if n in rows})


def _array(values: Values, kind: str) -> Any:
    if isinstance(values, Strings):
        indices: Any = pa.array(values.codes, mask=values.codes < 0)
        return pa.DictionaryArray.from_arrays(indices, pa.array(values.values, pa.string()))
    if kind == "str":
        return _text(values).dictionary_encode()
    mask = None
    if isinstance(values, np.ndarray) and values.dtype == np.int64:
        mask = values == NULL
    elif isinstance(values, np.ndarray) and values.dtype == np.float64:
        mask = np.isnan(values)
    return pa.array(values, ARROW_TYPES[kind], mask=mask)


def _text(values: Sequence[Any] | NDArray[Any]) -> Any:
    """Encodes strings; invalid characters, as in some file names, become `?`."""
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        valid = [v if v is None else v.encode("utf-8", "replace").decode() for v in values]
        return pa.array(valid, pa.string())


def parquet_bytes(table: pa.Table, codec: Codec = PACKED) -> bytes:
    """The table as one Parquet file."""
    sink = pa.BufferOutputStream()
    coded: Any = [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
    pq.write_table(
        table,
        sink,
        compression=codec,
        write_page_checksum=True,
        use_dictionary=coded,
        column_encoding=_encodings(table.schema) or None,
    )
    return bytes(sink.getvalue())


def _encodings(schema: pa.Schema) -> dict[str, str]:
    """Delta encoding suits counters and times best; every Parquet reader supports it."""
    return {f.name: "DELTA_BINARY_PACKED" for f in schema if pa.types.is_integer(f.type)}
