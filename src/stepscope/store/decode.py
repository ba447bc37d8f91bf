"""Decodes Parquet files, our own or of other programs, into rows in our types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stepscope.errors import FormatError
from stepscope.store.bounds import check_row_groups, check_rows
from stepscope.store.encode import ARROW_TYPES
from stepscope.trace import TABLES, TableSpec

_SPARE: Mapping[str, str] = {
    "steps": "start_ns",
    "phases": "step microbatch start_ns",
    "kernels": "step stream",
    "kernel_summaries": "stream cluster",
    "comm_ops": "step group seq peer bytes enqueue_ns",
    "transfers": "peer posted completed",
    "stacks": "thread active gil",
    "hardware": "rank host",
    "losses": "rank",
    "exits": "host pid status signal announced reason detail",
    "patterns": "kind",
    "pauses": "step",
}
"""Required columns that a collector may still leave out; they are null in every row then. A row
without one of the other required columns is useless."""

_LEAST_ROW_BYTES = 4
"""Hardly any row takes less; ours take 10."""
_LARGE_BYTES = 1 << 16
"""For smaller files the number of rows is estimated: reading it costs as much as some rows."""

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_LARGEST_EXACT_FLOAT = 2**53


def decode(table: str, data: bytes, keys: Mapping[str, str] = MappingProxyType({})) -> pa.Table:
    """The file's columns of this table, in the types of `trace.TABLES`; others are ignored.

    Columns that are in the path instead (`rank=7/a.parquet`) come from `keys`.

    Raises:
        FormatError: the bytes are not a Parquet file, lack columns, or have other types.
    """
    spec = TABLES[table]
    raw = _read(spec, data, keys)
    kinds = spec.columns.items()
    columns = {name: _cast(raw[name], name, kind) for name, kind in kinds if name in raw}
    return _filled(spec, pa.table(columns))


def approximate_rows(data: bytes) -> int:
    """The approximate number of rows of a file, without decoding it: from the file's metadata, if
    it is large and the number is plausible."""
    most = len(data) // _LEAST_ROW_BYTES
    if len(data) < _LARGE_BYTES:
        return most
    try:
        rows = int(pq.read_metadata(pa.BufferReader(data)).num_rows)
    except (pa.ArrowException, OSError, ValueError):
        return 0
    return min(max(rows, 0), most)


def essential_columns(spec: TableSpec) -> set[str]:
    return set(spec.columns) - spec.optional - set(_SPARE.get(spec.name, "").split())


def _read(spec: TableSpec, data: bytes, keys: Mapping[str, str]) -> dict[str, Any]:
    try:
        file = _opened(data, [])
        check_rows(file.metadata.num_rows, len(data))
        check_row_groups(file.metadata.num_rows, _row_groups(file))
        names = _checked(spec, file.schema_arrow.names, keys)
        plain = [name for name in names if spec.columns[name] == "str" and _is_plain(file, name)]
        if plain:  # another program's file; ours mark coded columns and are opened only once
            file = _opened(data, plain)
        rows = file.read(columns=names, use_threads=False)
        # a damaged file can have codes outside its dictionary and invalid UTF-8
        rows.validate(full=True)
        from_path = spec.columns.keys() & keys.keys() - set(names)
        constant = {name: _repeated(keys[name], rows.num_rows) for name in from_path}
        return {**constant, **{name: rows[name] for name in names}}
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError) as cause:
        raise FormatError(f"is not a complete Parquet file ({_first_line(cause)})") from None


def _opened(data: bytes, coded: list[str]) -> pq.ParquetFile:
    """Opens the file; columns in `coded` are read as dictionary codes."""
    return pq.ParquetFile(
        pa.BufferReader(data),
        read_dictionary=coded,
        page_checksum_verification=True,
        pre_buffer=False,  # it is in memory already
    )


def _row_groups(file: pq.ParquetFile) -> list[int]:
    """The rows that each group declares. Nothing else of a group is looked at: pyarrow crashes on
    the columns of damaged metadata."""
    return [file.metadata.row_group(one).num_rows for one in range(file.metadata.num_row_groups)]


def _is_plain(file: pq.ParquetFile, name: str) -> bool:
    return not pa.types.is_dictionary(file.schema_arrow.field(name).type)


def _repeated(value: str, rows: int) -> Any:
    known = None if value == _HIVE_NULL else value
    return pa.chunked_array([pa.repeat(pa.scalar(known, pa.string()), rows)])


def _checked(spec: TableSpec, found: list[str], keys: Mapping[str, str]) -> list[str]:
    """The columns found that belong to the table."""
    missing = essential_columns(spec) - {*found, *keys}
    if missing:
        raise FormatError(f"lacks {_listed(missing)} of table {spec.name}; it has {_listed(found)}")
    names = [name for name in found if name in spec.columns]
    if len(set(names)) < len(names):
        raise FormatError(f"has a column twice: {_listed(names)}")
    return names


def _filled(spec: TableSpec, rows: pa.Table) -> pa.Table:
    """Adds the required columns that were left out."""
    for name, kind in spec.columns.items():
        if name not in rows.column_names and name not in spec.optional:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, ARROW_TYPES[kind]))
    return rows


def _cast(column: Any, name: str, kind: str) -> Any:
    if column.type == ARROW_TYPES[kind]:
        return column
    try:
        if kind == "str":
            return _coded(column)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if kind in ("int64", "int32"):
            return _whole(column).cast(ARROW_TYPES[kind])
        return column.cast(ARROW_TYPES[kind])
    except (pa.ArrowException, ValueError, OverflowError) as cause:
        found = f"column {name} holds {column.type}"
        raise FormatError(f"{found}, not {kind} ({_first_line(cause)})") from None


def _coded(column: Any) -> Any:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(pa.string()).dictionary_encode()


def _whole(column: Any) -> Any:
    """Converts integers of any width, times of any unit, and floats with integer values."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("ns", column.type.tz)).cast(pa.int64())
    if pa.types.is_duration(column.type):
        return column.cast(pa.duration("ns")).cast(pa.int64())
    if pa.types.is_floating(column.type):
        import pyarrow.compute as pc

        column = pc.if_else(pc.is_nan(column), None, column)
        largest = pc.max(pc.abs(column)).as_py()
        if largest is not None and largest > _LARGEST_EXACT_FLOAT:
            raise ValueError("floats beyond 2^53 are not exact integers")
    return column


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "no columns"


def _first_line(cause: BaseException) -> str:
    return (str(cause) or type(cause).__name__).split("\n", 1)[0][:160]
