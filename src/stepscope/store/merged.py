"""Decides which copy of a row counts while small files and merged ones exist side by side.

A merged file is put first; only then the files in it are deleted. In between, or for long after a
crash, both exist; and two compactors may merge the same files, since a bucket has no locks. So a
merged file records how many rows it has of which small file (its *claims*), every row in it records
its file (column `merged_from`), and readers count each row once:

- a merged file that another one replaces, because it took all its rows, does not count;
- the first n rows of a small file count in the merged file that claims the most of them (the first
  by name if there are several); a small file only ever gains rows;
- the small file itself counts from row n on. So even a file that is written again after it was
  merged and deleted, by a processor that waited for its store, loses and duplicates nothing.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stepscope.errors import FormatError
from stepscope.store.decode import decode
from stepscope.store.layout import hive_keys
from stepscope.store.location import Entry, Location

COLUMN = "merged_from"
"""An index into the claims, int32."""
_KEY = b"stepscope.merged"
"""Key of the claims, as JSON, in the Parquet file's metadata."""
_MOST_ROWS = (1 << 63) - 1
_TRAILER = struct.Struct("<I4s")
_USUAL_FOOTER = 1 << 16
"""Large enough for the claims of a thousand files."""


@dataclass(frozen=True)
class Claims:
    """The contents of a merged file: rows by small file, in the order of the indices in
    `merged_from`, and the merged files that it replaces."""

    rows: Mapping[str, int]
    stands_for: frozenset[str] = frozenset()

    def metadata(self) -> dict[bytes, bytes]:
        said = {"rows": dict(self.rows), "stands_for": sorted(self.stands_for)}
        return {_KEY: json.dumps(said, separators=(",", ":")).encode()}


@dataclass(frozen=True)
class Share:
    """The rows of a file that count: those after the first `skip`, and in a merged file those that
    are not from the files with an index in `without`."""

    skip: int = 0
    without: frozenset[int] = frozenset()


WHOLE = Share()


def claims_in(data: bytes) -> Claims:
    """The claims of a merged file; its footer is enough.

    Raises:
        FormatError: it has no readable claims.
    """
    try:
        return claims_of((pq.read_metadata(pa.BufferReader(data)).metadata or {})[_KEY])
    except (pa.ArrowException, OSError, LookupError, ValueError):
        raise FormatError("is named like a merged file but has no readable claims") from None


def claims_of(text: bytes) -> Claims:
    """Reads what a merged file's metadata says.

    Raises:
        ValueError: it is not as `Claims` writes it, or has numbers that count no rows.
    """
    try:
        said = json.loads(text)
        rows = {str(path): int(count) for path, count in said["rows"].items()}
        stands_for = frozenset(map(str, said["stands_for"]))
    except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as cause:
        raise ValueError(str(cause)) from None
    if not all(0 <= count <= _MOST_ROWS for count in rows.values()):
        raise ValueError("impossible numbers of rows")
    return Claims(rows, stands_for)


def stored_claims(location: Location, entry: Entry) -> Claims | None:
    """The claims of a merged file, fetching only its footer; None if the file is gone or has no
    claims.

    A Parquet file ends with its footer, the footer's size (uint32) and `PAR1`.
    """
    end = location.get_end(entry, _USUAL_FOOTER)
    if end is not None and len(end) >= _TRAILER.size:
        size = _TRAILER.unpack(end[-_TRAILER.size :])[0] + _TRAILER.size
        end = end if size <= len(end) else location.get_end(entry, size)
    try:
        return None if end is None else claims_in(end)
    except FormatError:
        return None


def shares(paths: Iterable[str], claims: Mapping[str, Claims]) -> dict[str, Share]:
    """Which rows count of each existing file; files without counting rows are left out.

    `claims` are those of the readable merged files among them.
    """
    replaced = {path for one in claims.values() for path in one.stands_for}
    valid = {path: one for path, one in claims.items() if path not in replaced}
    holders = _holders(valid)
    counting: dict[str, Share] = {}
    for path in paths:
        if path in valid:
            lost = (n for n, small in enumerate(valid[path].rows) if holders[small][1] != path)
            counting[path] = Share(without=frozenset(lost))
        elif path not in replaced:
            counting[path] = Share(skip=holders[path][0] if path in holders else 0)
    return counting


def _holders(claims: Mapping[str, Claims]) -> dict[str, tuple[int, str]]:
    """For each small file, the number of claimed rows and the merged file that claims them."""
    holders: dict[str, tuple[int, str]] = {}
    for merged in sorted(claims):
        for small, rows in claims[merged].rows.items():
            if small not in holders or rows > holders[small][0]:
                holders[small] = rows, merged
    return holders


def counting_rows(table: str, path: str, data: bytes, share: Share) -> pa.Table:
    """The rows of one file that count, in the types of `trace.TABLES`.

    Raises:
        FormatError: as `decode`.
    """
    rows = decode(table, data, hive_keys(path)).slice(share.skip)
    if share.without:
        origin = origins(data, rows.num_rows)
        rows = rows.filter(pa.array(~np.isin(origin, list(share.without))))
    return rows


def origins(data: bytes, rows: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The index of the claim that each of its `rows` belongs to, in a merged file.

    Raises:
        FormatError: it has no such column, or not one index per row.
    """
    try:
        column: Any = pq.read_table(pa.BufferReader(data), columns=[COLUMN])[COLUMN]
        if pa.types.is_integer(column.type) and not column.null_count and len(column) == rows:
            return np.asarray(column.to_numpy(), np.int64)
    except (pa.ArrowException, OSError, LookupError, TypeError, ValueError):
        pass
    raise FormatError(f"is a merged file without a usable column {COLUMN}")
