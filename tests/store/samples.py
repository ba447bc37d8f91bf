"""Small rows for the tests here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stepscope.store import Location
from stepscope.window import NULL, Strings, Table

REPOSITORY = Path(__file__).parents[2]
"""Where other processes find these samples."""

SECOND_NS = 1_000_000_000


def steps(*numbers: int, rank: int = 0) -> dict[str, list[int]]:
    """One-second steps; number n starts at second n."""
    return {
        "rank": [rank] * len(numbers),
        "step": list(numbers),
        "start_ns": [number * SECOND_NS for number in numbers],
        "duration_ns": [SECOND_NS] * len(numbers),
    }


def operators(*seqs: int, end_ns: int | None, start_ns: int | None = 5) -> dict[str, list[Any]]:
    """AllReduces of rank 0, enqueued one millisecond apart."""
    return {
        "rank": [0] * len(seqs),
        "step": [1] * len(seqs),
        "group": ["dp-0"] * len(seqs),
        "seq": list(seqs),
        "op": ["AllReduce"] * len(seqs),
        "peer": [-1] * len(seqs),
        "bytes": [None] * len(seqs),
        "enqueue_ns": [seq * 1_000_000 for seq in seqs],
        "start_ns": [start_ns] * len(seqs),
        "end_ns": [end_ns] * len(seqs),
    }


def values(table: Table | None, column: str) -> list[Any]:
    """A column as a list with None for null."""
    assert table is not None
    data = table.columns[column]
    if isinstance(data, Strings):
        return [data[row] for row in range(len(data))]
    missing = NULL if data.dtype == np.int64 else None
    return [None if value == missing else value for value in data.tolist()]


def put_parquet(path: Path, columns: dict[str, Any], **options: Any) -> None:
    """A file that another program wrote."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)


def files(folder: str | Path, pattern: str = "**/*.parquet") -> list[str]:
    """Paths below a folder, sorted."""
    base = Path(folder)
    return sorted(str(path.relative_to(base)) for path in base.glob(pattern) if path.is_file())


def pairs(table: Table | None, *columns: str) -> list[Sequence[Any]]:
    return list(zip(*(values(table, column) for column in columns), strict=True))


_WRITE = """
import sys
from stepscope.store import JobWriter, Location
from stepscope.trace import Job
from tests.store.samples import operators, steps

url, times, max_rows_per_file = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
writer = JobWriter(Location.parse(url), "host-0", max_rows_per_file=max_rows_per_file)
writer.write_job(Job("job-1", 1))
for number in range(times):
    writer.append("comm_ops", operators(number, end_ns=9))
    writer.replace("comm_ops", "open", operators(number + 1, end_ns=None))
    writer.append("steps", steps(number))
    writer.flush()
"""


def write_beside(job: Location, times: int, max_rows_per_file: int) -> subprocess.Popen[bytes]:
    """Another process that writes a job, flush by flush."""
    command = [sys.executable, "-c", _WRITE, job.url, str(times), str(max_rows_per_file)]
    return subprocess.Popen(command, cwd=REPOSITORY)
