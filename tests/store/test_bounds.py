"""Numbers in files that would take all memory if they were believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import FormatError
from stepscope.store import JobReader, bounds
from stepscope.trace.parsing import MOST_RANKS

from .samples import put_parquet, steps


def test_a_rank_that_no_job_has_takes_no_memory(tmp_path: Path) -> None:
    """A grid of 2^31 ranks would take 16 GB."""
    absurd, last = 2**31 - 1, MOST_RANKS - 1
    for rank in (0, last, absurd):
        put_parquet(tmp_path / f"steps/r{rank}.parquet", steps(1, 2, rank=rank))
    reader = JobReader(str(tmp_path))
    assert reader.read().ranks == (0, last)
    left_out = f"steps/r{absurd}.parquet: 2 rows of ranks from {MOST_RANKS} on left out"
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


def test_row_groups_that_do_not_add_up_to_the_file_are_refused() -> None:
    """Fuzzing found a kilobyte whose only group declares 95 billion rows: 16 GB to read it."""
    bounds.check_row_groups(7, [3, 4])
    bounds.check_row_groups(0, [])
    with pytest.raises(FormatError, match="declares 7 rows, but its row groups 95405667967"):
        bounds.check_row_groups(7, [95_405_667_967])
    with pytest.raises(FormatError, match="row groups"):
        bounds.check_row_groups(7, [8, -1])


def test_a_file_whose_row_group_declares_too_much_is_a_problem_of_that_file(tmp_path: Path) -> None:
    put_parquet(tmp_path / "steps/good.parquet", steps(1))
    honest = tmp_path / "steps/bad.parquet"
    put_parquet(honest, steps(*range(12_345)))
    honest.write_bytes(_with_rows_of_its_group(honest.read_bytes(), 12_345, 95_405_667_967))
    reader = JobReader(str(tmp_path))
    assert reader.read().tables["steps"].ints("step").tolist() == [1]
    assert any("its row groups 95405667967" in problem for problem in reader.problems)


def _with_rows_of_its_group(data: bytes, rows: int, declared: int) -> bytes:
    """The file with another number of rows in its only row group: the last place in the footer
    (Thrift, compact protocol) that says it."""
    length = int.from_bytes(data[-8:-4], "little")
    body, footer = data[: -8 - length], data[-8 - length : -8]
    before, _, after = footer.rpartition(_varint(2 * rows))
    footer = before + _varint(2 * declared) + after
    return body + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def _varint(number: int) -> bytes:
    low, high = number % 128, number // 128
    return bytes([low | 128]) + _varint(high) if high else bytes([low])
