"""Merges several files of one table: rows are sorted, and each keeps the file that it came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stepscope.errors import FormatError
from stepscope.store.buffer import concat
from stepscope.store.decode import decode
from stepscope.store.layout import hive_keys, is_merged
from stepscope.store.location import Location
from stepscope.store.merged import COLUMN, Claims, claims_in, origins, shares
from stepscope.trace import TABLES


@dataclass(frozen=True, eq=False)
class Piece:
    """A file to merge. `origin` has an index into the files of its `claims` for each row; a small
    file has no claims, and all its rows have index 0."""

    path: str
    rows: pa.Table
    claims: Claims | None
    origin: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.origin)


def piece_of(location: Location, path: str) -> Piece | None:
    """Reads a file; None if it is gone, damaged, or has unknown columns."""
    data = location.get(path)
    try:
        return None if data is None else piece_in(path, data)
    except FormatError:
        return None


def piece_in(path: str, data: bytes) -> Piece | None:
    """What a file's bytes hold; None if there are unknown columns, which would be lost.

    Raises:
        FormatError: it is damaged.
    """
    table = path.partition("/")[0]
    rows = decode(table, data, hive_keys(path))
    known = {*TABLES[table].columns, COLUMN}
    if not known.issuperset(pq.read_schema(pa.BufferReader(data)).names):
        return None
    if is_merged(path):
        return Piece(path, rows, *_sources(data, rows.num_rows))
    return Piece(path, rows, None, np.zeros(rows.num_rows, np.int64))


def _sources(data: bytes, rows: int) -> tuple[Claims, NDArray[np.int64]]:
    claims, origin = claims_in(data), origins(data, rows)
    if rows and not 0 <= origin.min() <= origin.max() < len(claims.rows):
        raise FormatError("is a merged file with rows of files that it does not claim")
    return claims, origin


def merge(table: str, pieces: Sequence[Piece]) -> pa.Table:
    """The rows of all pieces, each once, sorted by rank and time; the claims are in the metadata.

    If two pieces contain a row, the copy that counts for readers is kept (see `merged`).
    """
    claims = {piece.path: piece.claims for piece in pieces if piece.claims is not None}
    counting = shares([piece.path for piece in pieces], claims)
    names: dict[str, int] = {}
    rows: dict[str, int] = {}
    parts: list[pa.Table] = []
    for piece in pieces:
        share = counting.get(piece.path)
        if share is None:
            continue
        own = {piece.path: len(piece)} if piece.claims is None else piece.claims.rows
        renumbered = np.array([names.setdefault(name, len(names)) for name in own], np.int32)
        rows |= {name: max(count, rows.get(name, 0)) for name, count in own.items()}
        keep = ~np.isin(piece.origin, list(share.without))
        keep[: share.skip] = False
        part = piece.rows.append_column(COLUMN, pa.array(renumbered[piece.origin]))
        parts.append(part.filter(pa.array(keep)))
    merged = _sorted(concat(parts), TABLES[table].time)
    stands_for = frozenset(claims).union(*(one.stands_for for one in claims.values()))
    return merged.replace_schema_metadata(Claims(rows, stands_for).metadata())


def _sorted(rows: pa.Table, time: str) -> pa.Table:
    keys: Any = [("rank", "ascending"), (time, "ascending")]
    return rows.take(pc.sort_indices(rows, sort_keys=keys))
