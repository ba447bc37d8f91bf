"""Converts rows, in lists and arrays, into the columns of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.processor.records.normalise import Rows
from stepscope.trace import TABLES
from stepscope.window import NULL, Column, Strings, Table


def joined(name: str, pieces: Sequence[Rows]) -> Table:
    """Concatenates pieces into a table; a column that some pieces lack is left out."""
    shared = [one for one in TABLES[name].columns if all(one in piece for piece in pieces)]
    kinds = TABLES[name].columns
    return Table({one: _joined([_column(p[one], kinds[one]) for p in pieces]) for one in shared})


def together(pieces: Sequence[Rows]) -> Rows:
    """Concatenates pieces with the same columns into one piece."""
    first = pieces[0]
    if len(pieces) == 1:
        return first
    return {name: _together([piece[name] for piece in pieces]) for name in first}


def _together(parts: Sequence[Any]) -> Any:
    """Concatenates parts; lists take the type of arrays or `Strings` among them."""
    if any(isinstance(part, Strings) for part in parts):
        return _strings([part if isinstance(part, Strings) else Strings.of(list(part))
                         for part in parts])  # fmt: skip
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if not arrays:
        return [value for part in parts for value in part]
    null = np.nan if arrays[0].dtype.kind == "f" else NULL
    return np.concatenate([part if isinstance(part, np.ndarray) else _array(part, null)
                           for part in parts])  # fmt: skip


def _column(values: Any, kind: str) -> Column:
    if isinstance(values, Strings):
        return values
    if kind == "str":
        return Strings.of(list(values))
    if isinstance(values, np.ndarray):
        return values
    return _array(values, np.nan if kind == "double" else NULL)


def _array(values: Sequence[Any], null: float) -> NDArray[Any]:
    return np.array([null if value is None else value for value in values])


def _joined(parts: Sequence[Column]) -> Column:
    texts = [part for part in parts if isinstance(part, Strings)]
    if len(texts) == len(parts):
        return _strings(texts)
    arrays: list[NDArray[Any]] = [part for part in parts if not isinstance(part, Strings)]
    return np.concatenate(arrays)


def _strings(parts: Sequence[Strings]) -> Strings:
    known: dict[str, int] = {}
    codes = []
    for part in parts:
        numbers = [known.setdefault(text, len(known)) for text in part.values]
        # the last one is for null, whose code is -1
        codes.append(np.array([*numbers, -1], np.int32)[part.codes])
    return Strings(np.concatenate(codes), tuple(known))
