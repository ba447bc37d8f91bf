"""Bounds of what is read: numbers in a file must not decide how much memory a reader takes.

A table is put on a grid of ranks, so one rank 2^31-1 would ask for 16 GB; a Parquet file of a
kilobyte can declare billions of rows. What lies beyond a bound is left out or refused, and
reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from stepscope.errors import FormatError
from stepscope.store.raw import numbers
from stepscope.trace.parsing import MOST_RANKS

MOST_JOB_BYTES = 1 << 26
"""A description of so many ranks in nine groups each, one number per line, takes 30 MB."""
MOST_ROWS_PER_BYTE, ROWS_IN_ANY_FILE = 64, 1 << 20
"""Columns of one value take next to nothing per row; ours take at least half a byte (measured)."""


def within(rows: pa.Table) -> tuple[pa.Table, int]:
    """The rows of possible ranks, and how many were left out."""
    if "rank" not in rows.column_names or not rows.num_rows:
        return rows, 0
    if all(numbers(chunk).max(initial=0) < MOST_RANKS for chunk in rows["rank"].chunks):
        return rows, 0
    import pyarrow.compute as pc

    ranks: Any = rows["rank"]
    possible: Any = pc.less(ranks, pa.scalar(MOST_RANKS))
    kept = rows.filter(pc.fill_null(possible, True))
    return kept, rows.num_rows - kept.num_rows


def check_rows(rows: int, size_bytes: int) -> None:
    """Raises FormatError: a file of this size cannot honestly hold so many rows."""
    most = MOST_ROWS_PER_BYTE * size_bytes + ROWS_IN_ANY_FILE
    if not 0 <= rows <= most:
        raise FormatError(f"declares {rows} rows in {size_bytes} bytes; at most {most} are read")


def check_row_groups(declared: int, groups: Sequence[int]) -> None:
    """Raises FormatError: the file's row groups do not add up to the rows that it declares.

    Arrow reserves memory for the rows of a group before it reads any.
    """
    if min(groups, default=0) < 0 or sum(groups) != declared:
        raise FormatError(f"declares {declared} rows, but its row groups {sum(groups)}")
