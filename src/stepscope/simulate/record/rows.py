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
        total = sum(piece.size for piece in self._pieces)
        values = np.empty(total, self._pieces[0].columns[name].dtype)
        filled = 0
        for piece in self._pieces:
            part = values[filled : filled + piece.size].reshape(piece.shape)
            part[...] = piece.columns[name]
            filled += piece.size
        return _named(values, tuple(self.words)) if name in self.text else values


def _named(codes: NDArray[Any], words: tuple[str, ...]) -> Strings:
    """With the words that this column uses: what looks through them all is slow otherwise."""
    used = np.bincount(codes, minlength=len(words)) > 0
    place = (np.cumsum(used) - 1).astype(np.int32)
    return Strings(place[codes], tuple(itertools.compress(words, used)))
