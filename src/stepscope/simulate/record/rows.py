"""Rows gathered step by step, and made into a table at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.window import Column, Mask, Strings, Table


@dataclass
class Rows:
    """Columns in pieces. Names are coded by a list that grows."""

    text: frozenset[str] = frozenset()
    """The columns whose values are codes of `words`."""
    pieces: list[Mapping[str, NDArray[Any]]] = field(default_factory=list)
    words: dict[str, int] = field(default_factory=dict)

    def code(self, word: str) -> int:
        return self.words.setdefault(word, len(self.words))

    def codes(self, words: Sequence[str]) -> NDArray[np.int32]:
        return np.array([self.code(word) for word in words], np.int32)

    def add(self, **columns: NDArray[Any] | np.generic) -> None:
        """Columns of any shapes that broadcast to one."""
        shape = np.broadcast_shapes(*(np.shape(column) for column in columns.values()))
        if 0 not in shape:
            self.pieces.append({name: np.broadcast_to(column, shape).ravel()
                                for name, column in columns.items()})  # fmt: skip

    def add_known(self, known: Mask, **columns: NDArray[Any] | np.generic) -> None:
        """The rows that are known, of columns that broadcast to the shape of `known`."""
        if known.all():
            self.add(**columns)
            return
        self.add(**{name: np.broadcast_to(column, known.shape)[known]
                    for name, column in columns.items()})  # fmt: skip

    def table(self) -> Table:
        """All rows; a table without columns where there are none."""
        if not self.pieces:
            return Table({})
        return Table({name: self._column(name) for name in self.pieces[0]})

    def drain(self) -> Table:
        """The rows since the last time."""
        table = self.table()
        self.pieces.clear()
        return table

    def _column(self, name: str) -> Column:
        values = np.concatenate([piece[name] for piece in self.pieces])
        if name in self.text:
            return Strings(values.astype(np.int32, copy=False), tuple(self.words))
        return values
