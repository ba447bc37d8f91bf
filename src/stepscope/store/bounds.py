"""Bounds of what is read: numbers in a file must not decide how much memory a reader takes.

A table is put on a grid of ranks, so one rank 2^31-1 would ask for 16 GB; a Parquet file of a
kilobyte can declare billions of rows. What lies beyond a bound is left out or refused, and
reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from stepscope.errors import FormatError
from stepscope.store.raw import numbers
from stepscope.trace import Job

MOST_RANKS = 1 << 18
"""More than twice the largest training jobs that were published (100,000 GPUs)."""
MOST_JOB_BYTES = 1 << 26
"""A description of so many ranks in nine groups each, one number per line, takes 30 MB."""
MOST_ROWS_PER_BYTE, ROWS_IN_ANY_FILE = 64, 1 << 20
"""Columns of one value take next to nothing per row; ours take at least half a byte (measured)."""
_MOST_INT64 = (1 << 63) - 1


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


def check_job(job: Job) -> Job:
    """The job itself.

    Raises:
        FormatError: it has more ranks than any job, or impossible numbers.
    """
    _check("world_size", (job.world_size,), MOST_RANKS)
    _check("ranks of hosts", (rank for host in job.hosts for rank in host.ranks))
    _check("ranks of groups", (rank for group in job.groups for rank in group.ranks))
    _check("recorded_ranks", job.recorded_ranks or ())
    _check("parallelism", job.parallelism.values(), MOST_RANKS)
    _check("observed_until_ns", (job.observed_until_ns or 0,), _MOST_INT64)
    if job.schedule is not None:
        sizes = (job.schedule.microbatches, job.schedule.virtual_stages)
        _check("schedule", sizes, MOST_RANKS)
    if job.fabric is not None:
        _check("tiers of switches", (switch.tier for switch in job.fabric.switches))
    return job


def _check(what: str, numbers: Iterable[int], most: int = MOST_RANKS - 1) -> None:
    for number in numbers:
        if not 0 <= number <= most:
            raise FormatError(f"has {number} among {what}; possible are 0 to {most}")
