"""C++ versions of work on whole columns; None if not compiled, and then numpy is used."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    from stepscope._native import count_until, covered, gather, merge, stable_order
except ImportError:  # installed without a compiler
    count_until = covered = gather = None  # type: ignore[assignment]
    merge = stable_order = None  # type: ignore[assignment]

__all__ = ["count_until", "covered", "gather", "is_plain", "merge", "stable_order"]


def is_plain(column: NDArray[Any]) -> bool:
    """Whether it is one piece of int64, as these functions take it."""
    return column.dtype == np.int64 and column.flags.c_contiguous
