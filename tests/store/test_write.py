"""What a writer stores in a folder, and what a reader then gets."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from stepscope.store import JobReader, JobWriter, Location, job_location
from stepscope.trace import Host, Job

from .conftest import Clock
from .samples import SECOND_NS, files, operators, pairs, steps, values

HARDWARE: dict[str, list[Any]] = {
    "rank": [-1],
    "host": ["host-0"],
    "metric": ["cpu_util"],
    "ts_ns": [1],
    "value": [0.5],
}


def test_what_was_written_is_read_on_disk_and_in_a_bucket(root: str) -> None:
    writer = JobWriter(job_location(root, "llama"), "host-0")
    writer.write_job(Job("llama", 2, hosts=(Host("host-0", (0, 1)),)))
    writer.append("steps", steps(1, 2))
    writer.append("hardware", HARDWARE)

    assert writer.flush().ok
    window = JobReader(root).refresh()

    assert window.job == Job("llama", 2, hosts=(Host("host-0", (0, 1)),))
    assert values(window.table("steps"), "step") == [1, 2]
    assert values(window.table("hardware"), "metric") == ["cpu_util"]
    assert set(window.tables) == {"steps", "hardware"}


def test_a_file_grows_until_it_is_full_and_is_never_written_twice(job: Location) -> None:
    writer = JobWriter(job, "host-0", max_rows_per_file=3)
    for step in range(5):
        writer.append("steps", steps(step))
        writer.flush()

    assert len(files(job.url)) == 2
    assert values(JobReader(job.url).refresh().table("steps"), "step") == [0, 1, 2, 3, 4]


def test_an_old_file_is_followed_by_a_new_one(
    writer: JobWriter, clock: Clock, job: Location
) -> None:
    for _ in range(3):
        writer.append("steps", steps(1))
        writer.flush()
        clock.now_s += 61

    assert len(files(job.url)) == 2


def test_a_restarted_processor_keeps_what_its_predecessor_wrote(
    job: Location, clock: Clock
) -> None:
    for step in (1, 2):
        processor = JobWriter(job, "host-0", clock=clock)
        processor.append("steps", steps(step))
        processor.flush()

    assert values(JobReader(job.url).refresh().table("steps"), "step") == [1, 2]


def test_a_replaced_file_holds_the_newest_rows_only(
    writer: JobWriter, reader: JobReader, job: Location
) -> None:
    writer.replace("comm_ops", "open", operators(1, 2, end_ns=None))
    writer.flush()
    writer.replace("comm_ops", "open", operators(2, end_ns=None))
    writer.flush()
    assert pairs(reader.refresh().table("comm_ops"), "seq", "end_ns") == [(2, None)]

    writer.replace("comm_ops", "open", operators(end_ns=None))
    writer.flush()
    assert files(job.url) == []


def test_an_operator_that_moves_between_two_files_is_read_once(
    writer: JobWriter, reader: JobReader
) -> None:
    writer.replace("comm_ops", "open", operators(1, 2, end_ns=None))
    writer.append("comm_ops", operators(1, end_ns=9))
    writer.flush()

    assert pairs(reader.refresh().table("comm_ops"), "seq", "end_ns") == [(1, 9), (2, None)]


def test_a_missing_column_is_left_out_and_a_null_one_is_not(
    writer: JobWriter, reader: JobReader
) -> None:
    host_calls = operators(1, end_ns=None)
    del host_calls["start_ns"], host_calls["end_ns"]
    writer.append("comm_ops", host_calls)
    writer.flush()
    table = reader.refresh().table("comm_ops")
    assert table is not None and not table.has("end_ns")

    writer.append("comm_ops", operators(2, end_ns=None))
    writer.flush()
    assert values(reader.refresh().table("comm_ops"), "end_ns") == [None, None]


def test_a_column_that_the_table_does_not_have_is_our_own_mistake(writer: JobWriter) -> None:
    with pytest.raises(AssertionError, match="colour"):
        writer.append("steps", steps(1) | {"colour": ["red"]})
    with pytest.raises(AssertionError, match="duration_ns"):
        writer.append("steps", {"rank": [0], "step": [1], "start_ns": [0]})
    with pytest.raises(AssertionError, match="length"):
        writer.append("steps", steps(1) | {"rank": [0, 1]})


def test_other_tools_read_the_folder_with_hive_partitions(writer: JobWriter, job: Location) -> None:
    writer.append("hardware", HARDWARE)
    writer.flush()

    table = ds.dataset(f"{job.url}/hardware", partitioning="hive").to_table()

    assert table["recorder"].to_pylist() == ["host-0"]
    assert table["host"].to_pylist() == ["host-0"]


def test_no_job_id_leaves_its_store(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("runs")
    for job_id in ("..", "a/b", "", ".hidden", "_temporary", "a b", "a_b", "ü" * 300):
        writer = JobWriter(job_location(str(root), job_id), "..")
        writer.write_job(Job(job_id, 1))
        assert writer.flush().ok

    assert len(files(root, "*/job.json")) == 8
    assert files(root.parent, "*.json") == []


def test_rows_appended_while_a_flush_runs_are_stored_once(job: Location) -> None:
    writer = JobWriter(job, "host-0", max_rows_per_file=50)

    def append(rank: int) -> None:
        for step in range(200):
            writer.append("steps", steps(step, rank=rank))

    threads = [threading.Thread(target=append, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        writer.flush()
    writer.close()

    seen = pairs(JobReader(job.url).refresh().table("steps"), "rank", "step")
    assert seen == [(rank, step) for rank in range(3) for step in range(200)]


def test_rows_known_to_be_lost_are_a_table_too(writer: JobWriter, reader: JobReader) -> None:
    writer.losses("kernels", 5 * SECOND_NS, 6 * SECOND_NS, 1000, rank=3)
    writer.flush()

    lost = reader.refresh().table("losses")
    assert pairs(lost, "rank", "table", "start_ns", "end_ns", "rows") == [
        (3, "kernels", 5 * SECOND_NS, 6 * SECOND_NS, 1000)
    ]


def test_a_stack_is_stored_before_the_samples_it_explains(job: Location) -> None:
    """Whoever reads between two files of one flush may miss the samples, never the stack."""
    writer = JobWriter(job, "host-0")
    stack: dict[str, list[Any]] = {
        "rank": [1], "thread": ["MainThread"], "start_ns": [1], "duration_ns": [0],
        "frames": ["main (train.py:1)"], "active": [False], "gil": [False],
    }  # fmt: skip
    writer.append("hardware", HARDWARE)
    writer.append("stacks", stack)
    writer.flush()

    written = sorted(Path(job.url).glob("*/**/*.parquet"), key=lambda file: file.stat().st_mtime_ns)
    assert [file.relative_to(job.url).parts[0] for file in written] == ["stacks", "hardware"]
