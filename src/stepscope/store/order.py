"""Sorts rows by rank and time, in place.

Files contain whole ranks, or the ranks of a host. So a table can be cut wherever all ranks before a
row are lower than all ranks from that row on. The parts are sorted separately, which keeps
temporary memory small: copying a table of millions of rows costs more than sorting it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.window import Column, Ints, Rows, Strings, stable_order

BLOCK = 1 << 17
"""Smallest number of rows that are sorted at a time."""
PIECE = 1 << 12
"""Rows in which a cut is looked for at a time."""
_MOST = np.iinfo(np.int64).max


def in_order(columns: dict[str, Column], time: str) -> dict[str, Column]:
    """The columns sorted by rank and time; the sort is stable."""
    ranks, times = columns["rank"], columns[time]
    assert isinstance(ranks, np.ndarray) and isinstance(times, np.ndarray), "they are numbers"
    orders = [(part, order) for part in by_rank(ranks)
              if (order := _order(_wide(ranks[part]), _wide(times[part]))) is not None]  # fmt: skip
    return {name: _moved(column, orders) for name, column in columns.items()} if orders else columns


def by_rank(ranks: NDArray[Any]) -> Iterator[slice]:
    """Parts of adjacent rows; all ranks in a part are lower than those in later parts."""
    if not ranks.size:
        return
    begins = np.arange(0, ranks.size, PIECE)
    highest = np.maximum.accumulate(_wide(np.maximum.reduceat(ranks, begins)))
    lowest = np.minimum.accumulate(_wide(np.minimum.reduceat(ranks, begins)[::-1]))[::-1]
    around = zip(begins[1:].tolist(), highest.tolist(), [*lowest[2:].tolist(), _MOST], strict=False)
    first, wanted = 0, BLOCK
    for begin, before, after in around:
        if (
            begin >= wanted
            and (cuts := _cuts(_wide(ranks[begin : begin + PIECE]), before, after)).size
        ):
            yield slice(first, begin + int(cuts[0]))
            first = begin + int(cuts[0])
            wanted = (first // BLOCK + 1) * BLOCK
    yield slice(first, ranks.size)


def _cuts(piece: Ints, before: int, after: int) -> Rows:
    """Where all earlier ranks are lower than all later ones, given the highest one before the piece
    and the lowest one after it."""
    highest = np.maximum.accumulate(np.append(before, piece[:-1]))
    lowest = np.minimum(np.minimum.accumulate(piece[::-1])[::-1], after)
    return np.flatnonzero(highest < lowest)


def _order(ranks: Ints, times: Ints) -> Rows | None:
    """The sorting order; None if the rows are sorted already."""
    if _is_sorted(ranks, times):
        return None
    lowest, span = int(times.min()), int(times.max()) - int(times.min()) + 1
    first, last = int(ranks.min()), int(ranks.max())
    if span * (last - first + 1) >= 2**63:
        return np.lexsort((times, ranks))
    order = stable_order(ranks - first)
    place = (ranks[order] - first) * span + (times[order] - lowest)
    if (place[1:] >= place[:-1]).all():
        return order
    # files are written nearly in order of time, so a sort that detects runs is fast
    return order[np.argsort(place, kind="stable")]


def _is_sorted(ranks: Ints, times: Ints) -> bool:
    same, later = ranks[1:] == ranks[:-1], times[1:] >= times[:-1]
    return bool(np.all((ranks[1:] > ranks[:-1]) | (same & later)))


def _moved(column: Column, orders: list[tuple[slice, Rows]]) -> Column:
    if isinstance(column, Strings):
        return Strings(_in_place(column.codes, orders), column.values)
    return _in_place(column, orders)


def _in_place(values: NDArray[Any], orders: list[tuple[slice, Rows]]) -> NDArray[Any]:
    """Sorts in place; copies first if the memory is Arrow's, which is read-only."""
    values = values if values.flags.writeable else values.copy()
    for part, order in orders:
        values[part] = values[part].take(order)
    return values


def _wide(values: NDArray[Any]) -> Ints:
    """Numbers with room for arithmetic; of a few rows at a time, because wide columns are large."""
    return values.astype(np.int64, copy=False)
