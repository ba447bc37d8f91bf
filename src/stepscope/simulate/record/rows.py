"""Collects rows step by step, and makes them into a table at the end."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.window import Column, Mask, Strings, Table

Value = NDArray[Any] | np.generic


@dataclass(frozen=True)
class _Piece:
    """Columns that broadcast to one shape; this happens only when a table is made."""

    columns: Mapping[str, Value]
    shape: tuple[int, ...]
    size: int


@dataclass
class Rows:
    """Columns in pieces. Names are coded by a list that grows."""

    text: frozenset[str] = frozenset()
    """The columns whose values are codes of `words`."""
    words: dict[str, int] = field(default_factory=dict)
    _pieces: list[_Piece] = field(default_factory=list)

    def code(self, word: str) -> int:
        return self.words.setdefault(word, len(self.words))

    def codes(self, words: Sequence[str]) -> NDArray[np.int32]:
        return np.array([self.code(word) for word in words], np.int32)

    def add(self, **columns: Value) -> None:
        """Adds columns that broadcast to one shape. They must not be changed afterwards."""
        shape = np.broadcast(*columns.values()).shape
        if 0 not in shape:
            self._pieces.append(_Piece(columns, shape, math.prod(shape)))

    def add_known(self, known: Mask, **columns: Value) -> None:
        """Adds the rows where `known` is true, from columns that broadcast to its shape."""
        if known.all():
            self.add(**columns)
            return
        self.add(**{name: np.broadcast_to(column, known.shape)[known]
                    for name, column in columns.items()})  # fmt: skip

    def table(self) -> Table:
        """All rows; a table without columns if there are none."""
        if not self._pieces:
            return Table({})
        return Table({name: self._column(name) for name in self._pieces[0].columns})

    def drain(self) -> Table:
        """The rows since the last call."""
        table = self.table()
        self._pieces.clear()
        return table

    def _column(self, name: str) -> Column:
        pieces = [np.asarray(piece.columns[name]) for piece in self._pieces]
        if name not in self.text:
            return self._spread(pieces)
        used, place = self._used(pieces)
        # translated before they are spread out, while they are small or shared by all steps
        known = {id(piece): place[piece] for piece in pieces}
        codes = self._spread([known[id(piece)] for piece in pieces])
        return Strings(codes, tuple(itertools.compress(self.words, used)))

    def _used(self, pieces: Sequence[NDArray[Any]]) -> tuple[Mask, NDArray[np.int32]]:
        """The words that a column uses, and the index of each among them. Unused words would slow
        down code that goes through all words."""
        # one more, for null: its code is -1
        used = np.zeros(len(self.words) + 1, np.bool_)
        for piece in {id(one): one for one in pieces}.values():
            used[piece] = True
        place = (np.cumsum(used) - 1).astype(np.int32)
        place[-1] = -1
        return used[:-1], place

    def _spread(self, pieces: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The pieces one below the other, each broadcast to the size of its rows."""
        values = np.empty(sum(piece.size for piece in self._pieces), pieces[0].dtype)
        filled = 0
        for piece, value in zip(self._pieces, pieces, strict=True):
            part = values[filled : filled + piece.size].reshape(piece.shape)
            part[...] = value
            filled += piece.size
        return values
