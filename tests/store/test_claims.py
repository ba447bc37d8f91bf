"""Merged files whose claims somebody else wrote, or whose bytes are damaged."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stepscope.store import JobReader, JobWriter, Location
from stepscope.store.compact import Compacted, compact
from stepscope.trace import Job

from .samples import files, pairs, steps

LATER_S = 1000.0


def written(job: Location) -> Path:
    """A job of two steps, both of them in a merged file, and where that is."""
    for step in range(2):
        writer = JobWriter(job, f"host-{step}", max_rows_per_file=1)
        writer.write_job(Job("job-1", 2))
        writer.append("steps", steps(step, rank=step))
        writer.flush()
    assert compact(job, now_s=time.time() + LATER_S) == Compacted(merged=2, into=1)
    (merged,) = files(job.url)
    return Path(job.url, merged)


def rewritten(file: Path, claims: bytes | None = None, merged_from: Any = None) -> None:
    table = pq.read_table(file)
    metadata = dict(table.schema.metadata)
    if merged_from is not None:
        at = table.column_names.index("merged_from")
        table = table.set_column(at, "merged_from", merged_from)
    if claims is not None:
        metadata[b"stepscope.merged"] = claims
    pq.write_table(table.replace_schema_metadata(metadata), file)


def a_new_step(job: Location) -> None:
    writer = JobWriter(job, "host-0", max_rows_per_file=1)
    writer.append("steps", steps(7))
    writer.flush()


@pytest.mark.parametrize("claims", [
    b'{"rows": {"a": Infinity}, "stands_for": []}', b'{"rows": {"a": -1}, "stands_for": []}',
    b'{"rows": {"a": %s}, "stands_for": []}' % (b"9" * 30), b"[" * 100_000, b"[]",
], ids=["infinite", "negative", "huge", "nested", "another kind"])  # fmt: skip
def test_a_file_with_impossible_claims_is_a_problem_of_that_file(
    job: Location, claims: bytes
) -> None:
    merged = written(job)
    rewritten(merged, claims)
    a_new_step(job)
    reader = JobReader(job.url)
    assert pairs(reader.read().tables["steps"], "rank", "step") == [(0, 7)]
    assert any("no readable claims" in problem for problem in reader.problems)


@pytest.mark.parametrize(
    "merged_from", [[0, 99], [0, -1], [0, None], ["a", "b"]],
    ids=["beyond", "negative", "missing", "words"],
)  # fmt: skip
def test_a_file_whose_rows_are_of_unknown_files_is_not_merged_again(
    job: Location, merged_from: list[Any]
) -> None:
    merged = written(job)
    rewritten(merged, merged_from=pa.array(merged_from))
    for _ in range(2):
        a_new_step(job)
    assert compact(job, now_s=time.time() + 2 * 3600 + LATER_S) == Compacted(merged=2, into=1)
    assert merged.exists()
