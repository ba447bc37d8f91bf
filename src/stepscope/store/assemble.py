"""Assembles the rows of many files into one numpy table, sorted, with each operator once."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stepscope.store.operators import one_row_each, with_peers
from stepscope.store.order import in_order
from stepscope.store.raw import filled, numbers
from stepscope.trace import TABLES, UNKNOWN_PEER
from stepscope.window import NULL, Column, Strings, Table

_NULL_MEANS: Mapping[str, int] = {"rank": -1, "microbatch": -1, "peer": UNKNOWN_PEER}
"""Integer columns with a special value for "none" or "unknown"; so 32 bits hold all values, which
saves a tenth of the memory of large jobs."""
LEAST_ROWS = 1 << 16
"""Smaller pieces are combined first."""
LARGE_BYTES = 1 << 20
"""From this size on, a column has memory of its own, apart from the heap."""
_TYPES = {"int32": np.int64, "int64": np.int64, "double": np.float64, "str": np.int32,
          "bool": np.bool_}  # fmt: skip


def assembled(table: str, pieces: Iterable[pa.Table], room: int) -> Table:
    """One table of the rows of all pieces, sorted by rank and time; without any, it has no columns.

    The pieces need not all be in memory at once.

    Args:
        room: the expected number of rows; more are possible at the price of a copy.
    """
    gathered = _Gathered(TABLES[table].columns, room)
    for piece in _not_too_small(pieces):
        gathered.add(piece)
        del piece  # or it would stay while the next one is decoded
    columns = gathered.columns()
    if not columns:
        return Table({})
    if table == "comm_ops":
        columns = dict(one_row_each(with_peers(Table(columns))).columns)
    return Table(in_order(columns, TABLES[table].time))


def _not_too_small(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Combines small pieces: converting a column has a fixed cost of about a thousand rows."""
    small: list[pa.Table] = []
    for piece in pieces:
        small.append(piece)
        del piece
        if sum(map(len, small)) >= LEAST_ROWS:
            yield _taken_together(small)
    if small:
        yield _taken_together(small)


def _taken_together(pieces: list[pa.Table]) -> pa.Table:
    """The pieces as one, taken out of the list."""
    if len(pieces) == 1:
        return pieces.pop()
    rows = pa.concat_tables(pieces, promote_options="default")
    pieces.clear()
    return rows.unify_dictionaries().combine_chunks()


class _Gathered:
    """Columns that are filled piece by piece. Allocating too much room is free: memory costs
    something only when it is first written to."""

    def __init__(self, kinds: Mapping[str, str], room: int) -> None:
        self._kinds = kinds
        self._room = room
        self._rows = 0
        self._arrays: dict[str, NDArray[Any]] = {}
        self._words: dict[str, dict[str, int]] = {}

    def add(self, piece: pa.Table) -> None:
        """Adds the rows of a piece; columns that it lacks are null."""
        first, stop = self._rows, self._rows + len(piece)
        self._make_room(stop)
        for name in piece.column_names:
            at, array = first, self._array(name)
            for chunk in piece[name].chunks:
                array[at : at + len(chunk)] = self._values(name, chunk)
                at += len(chunk)
        for name in self._arrays.keys() - set(piece.column_names):
            self._arrays[name][first:stop] = _null(name, self._kinds[name])
        self._rows = stop

    def columns(self) -> dict[str, Column]:
        """The columns filled so far."""
        arrays = {name: array[: self._rows] for name, array in self._arrays.items()}
        words = {name: tuple(known) for name, known in self._words.items()}
        return {
            name: Strings(array, words[name]) if name in words else array
            for name, array in arrays.items()
        }

    def _make_room(self, rows: int) -> None:
        if rows > self._room:
            self._room = max(rows, 2 * self._room)
            for name, array in self._arrays.items():
                self._arrays[name] = _empty(self._room, array.dtype)
                self._arrays[name][: self._rows] = array[: self._rows]

    def _array(self, name: str) -> NDArray[Any]:
        if name not in self._arrays:
            kind = self._kinds[name]
            dtype = np.dtype(np.int32 if name in _NULL_MEANS else _TYPES[kind])
            self._arrays[name] = _empty(self._room, dtype)
            self._arrays[name][: self._rows] = _null(name, kind)
            if kind == "str":
                self._words[name] = {}
        return self._arrays[name]

    def _values(self, name: str, chunk: Any) -> NDArray[Any]:
        if self._kinds[name] == "str":
            return self._codes(name, chunk)
        if chunk.null_count:
            return filled(chunk, _null(name, self._kinds[name]), self._arrays[name].dtype)
        return numbers(chunk)

    def _codes(self, name: str, chunk: Any) -> NDArray[Any]:
        """Codes in this column's dictionary; other programs' dictionaries may have duplicates."""
        known = self._words[name]
        here = [-1 if word is None else known.setdefault(word, len(known))
                for word in chunk.dictionary.to_pylist()]  # fmt: skip
        # the last one is for null, whose code is -1
        codes = np.array([*here, -1], np.int32)
        found = numbers(chunk.indices)
        if chunk.null_count:
            found = filled(chunk.indices, -1, codes.dtype)
        # mostly pieces have the same dictionary, in the same order
        return found if here == [*range(len(here))] else codes[found]


def _empty(rows: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array to be filled. Columns stay while decoded pieces come and go: on the heap they would
    lie between these, and what is freed could not be used for anything larger."""
    if rows * dtype.itemsize < LARGE_BYTES:
        return np.empty(rows, dtype)
    pages = mmap.mmap(-1, rows * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, dtype)


def _null(name: str, kind: str) -> Any:
    if kind == "double":
        return np.nan
    if kind == "bool":
        return False
    return -1 if kind == "str" else _NULL_MEANS.get(name, int(NULL))
