"""Numbers in files that would take all memory if they were believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import FormatError
from stepscope.store import JobReader, bounds

from .samples import put_parquet, steps


def test_a_rank_that_no_job_has_takes_no_memory(tmp_path: Path) -> None:
    """A grid of 2^31 ranks would take 16 GB."""
    absurd, last = 2**31 - 1, bounds.MOST_RANKS - 1
    for rank in (0, last, absurd):
        put_parquet(tmp_path / f"steps/r{rank}.parquet", steps(1, 2, rank=rank))
    reader = JobReader(str(tmp_path))
    assert reader.read().ranks == (0, last)
    left_out = f"steps/r{absurd}.parquet: 2 rows of ranks from {bounds.MOST_RANKS} on left out"
    assert left_out in reader.problems


def test_a_file_that_declares_more_rows_than_it_can_hold_is_refused(tmp_path: Path) -> None:
    bounds.check_rows(20_000, 2_000)
    with pytest.raises(FormatError, match="declares 1000000000000 rows in 1000 bytes"):
        bounds.check_rows(10**12, 1_000)
    put_parquet(tmp_path / "steps/a.parquet", steps(*range(2 * bounds.ROWS_IN_ANY_FILE)))
    assert JobReader(str(tmp_path)).read().ranks == (0,), "an honest file"


@pytest.mark.parametrize(
    "job",
    [
        {"world_size": 2_000_000},
        {"world_size": 1e400},
        {"world_size": float("nan")},
        {"hosts": [{"name": "a", "ranks": [2**31 - 1]}]},
        {"groups": [{"id": "a", "kind": "dp", "ranks": [-1]}]},
        {"recorded_ranks": [10**30]},
        {"observed_until_ns": 10**30},
        {"parallelism": {"tp": 10**12}},
        {"schedule": {"name": "1f1b", "microbatches": 10**12}},
    ],
)
def test_impossible_numbers_in_a_description_are_refused(
    tmp_path: Path, job: dict[str, Any]
) -> None:
    put_parquet(tmp_path / "steps/a.parquet", steps(1))
    text = json.dumps({"schema": 1, "job_id": "j", "world_size": 1, **job})
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(FormatError, match=r"job\.json"):
        JobReader(str(tmp_path)).read()
