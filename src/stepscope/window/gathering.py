"""Copies chosen rows of a column, in C++ if it was compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.window import compiled

FEW_ROWS = 1 << 10
"""So few rows take longer to hand over than to copy."""


def gathered(column: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
    """`column[rows]` of one dimension, without its cost for rows that lie together."""
    if (
        compiled.gather is None
        or rows.size < FEW_ROWS
        or not (column.flags.c_contiguous and compiled.is_plain(rows))
    ):
        return column.take(rows)  # faster than [rows]
    out = np.empty(rows.size, column.dtype)
    # it does not count from the end, as negative rows do
    return out if compiled.gather(column, column.itemsize, rows, out) else column.take(rows)
