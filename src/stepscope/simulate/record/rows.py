"""Rows gathered step by step, and made into a table at the end."""

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
    """Columns that broadcast to one shape; they are spread out only when a table is made."""

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
        """Columns of any shapes that broadcast to one. They belong to the table from now on."""
        shape = np.broadcast(*columns.values()).shape
        if 0 not in shape:
            self._pieces.append(_Piece(columns, shape, math.prod(shape)))

    def add_known(self, known: Mask, **columns: Value) -> None:
        """The rows that are known, of columns that broadcast to the shape of `known`."""
        if known.all():
            self.add(**columns)
            return
        self.add(**{name: np.broadcast_to(column, known.shape)[known]
                    for name, column in columns.items()})  # fmt: skip

    def table(self) -> Table:
        """All rows; a table without columns where there are none."""
        if not self._pieces:
            return Table({})
        return Table({name: self._column(name) for name in self._pieces[0].columns})

    def drain(self) -> Table:
        """The rows since the last time."""
        table = self.table()
        self._pieces.clear()
        return table

    def _column(self, name: str) -> Column:
        pieces = [np.asarray(piece.columns[name]) for piece in self._pieces]
        if name not in self.text:
            return self._spread(pieces)
        used, place = self._used(pieces)
        # small or shared by all steps: translated before they are spread out
        known = {id(piece): place[piece] for piece in pieces}
        codes = self._spread([known[id(piece)] for piece in pieces])
        return Strings(codes, tuple(itertools.compress(self.words, used)))

    def _used(self, pieces: Sequence[NDArray[Any]]) -> tuple[Mask, NDArray[np.int32]]:
        """The words that a column uses (what looks through them all is slow otherwise), and the
        number of each among them."""
        used = np.zeros(len(self.words), np.bool_)
        for piece in {id(one): one for one in pieces}.values():
            used[piece] = True
        return used, (np.cumsum(used) - 1).astype(np.int32)

    def _spread(self, pieces: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """One below the other, each as large as its rows are."""
        values = np.empty(sum(piece.size for piece in self._pieces), pieces[0].dtype)
        filled = 0
        for piece, value in zip(self._pieces, pieces, strict=True):
            part = values[filled : filled + piece.size].reshape(piece.shape)
            part[...] = value
            filled += piece.size
        return values
