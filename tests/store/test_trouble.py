"""Stores that are full, gone, or silent: what is kept, what is lost, and what is logged."""

from __future__ import annotations

import logging
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.errors import SourceError, StoreError
from stepscope.store import JobReader, JobWriter, Location, job_location
from stepscope.trace import Job

from .conftest import Clock
from .samples import REPOSITORY, SECOND_NS, files, operators, pairs, steps, values


def break_store(job: Location) -> None:
    """A file where the job's folder should be: nothing can be written, not even by root."""
    Path(job.url).parent.mkdir(parents=True, exist_ok=True)
    Path(job.url).write_text("in the way")


def repair_store(job: Location) -> None:
    Path(job.url).unlink()


def test_rows_wait_until_the_store_is_back(job: Location, clock: Clock) -> None:
    writer = JobWriter(job, "host-0", clock=clock)
    break_store(job)
    writer.write_job(Job("job-1", 1))
    writer.append("steps", steps(1))
    writer.replace("comm_ops", "open", operators(7, end_ns=None))

    status = writer.flush()
    assert not status.ok and status.pending_rows == 1 and status.stored_rows == 0

    repair_store(job)
    writer.append("steps", steps(2))
    clock.now_s += 60
    assert writer.flush().ok
    window = JobReader(job.url).refresh()
    assert values(window.table("steps"), "step") == [1, 2]
    assert values(window.table("comm_ops"), "seq") == [7]


def test_a_sick_store_is_tried_ever_more_rarely(job: Location, clock: Clock) -> None:
    writer = JobWriter(job, "host-0", clock=clock)
    break_store(job)
    writer.append("steps", steps(1))
    writer.flush()
    repair_store(job)

    assert not writer.flush().ok, "the first retry comes after a second"
    clock.now_s += 1
    assert writer.flush().ok


def test_the_last_flush_does_not_wait(job: Location, clock: Clock) -> None:
    writer = JobWriter(job, "host-0", clock=clock)
    break_store(job)
    writer.append("steps", steps(1))
    writer.flush()
    repair_store(job)

    assert writer.close().ok


def test_a_clock_turned_back_does_not_stop_the_retries(job: Location, clock: Clock) -> None:
    writer = JobWriter(job, "host-0", clock=clock)
    break_store(job)
    writer.append("steps", steps(1))
    writer.flush()
    repair_store(job)
    clock.now_s -= 3600

    assert writer.flush().ok


def test_the_oldest_rows_go_and_are_counted_by_rank(job: Location, clock: Clock) -> None:
    writer = JobWriter(job, "host-0", buffer_rows=10, clock=clock)
    break_store(job)
    for step in range(8):
        writer.append("steps", steps(step, rank=0))
        writer.append("steps", steps(step, rank=1))
        writer.flush()
    assert writer.status.dropped_rows == 6

    repair_store(job)
    clock.now_s += 60
    assert writer.flush().ok
    window = JobReader(job.url).refresh()
    assert values(window.table("steps"), "step") == [3, 4, 5, 6, 7] * 2
    assert pairs(window.table("losses"), "rank", "table", "start_ns", "end_ns", "rows") == [
        (0, "steps", 0, 2 * SECOND_NS, 3),
        (1, "steps", 0, 2 * SECOND_NS, 3),
    ]


def test_a_burst_beyond_the_buffer_loses_its_beginning(job: Location) -> None:
    writer = JobWriter(job, "host-0", buffer_rows=3)
    writer.append("steps", steps(*range(10)))
    writer.close()

    window = JobReader(job.url).refresh()
    assert values(window.table("steps"), "step") == [7, 8, 9]
    assert values(window.table("losses"), "rows") == [7]


def test_trouble_is_logged_once_when_it_starts_and_once_when_it_ends(
    job: Location, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "stepscope.store")
    writer = JobWriter(job, "host-0", clock=clock)
    break_store(job)
    for step in range(5):
        writer.append("steps", steps(step))
        writer.flush()
        clock.now_s += 60
    repair_store(job)
    for _ in range(3):
        writer.flush()
        clock.now_s += 60

    told = [record for record in caplog.records if record.name == "stepscope.store.writer"]
    assert [record.levelno for record in told] == [logging.WARNING, logging.INFO]
    began, ended = (record.getMessage() for record in told)
    assert job.url in began and "\n" not in began
    assert ended == f"{job.url} can be written again; 0 rows were lost"


def test_one_table_that_cannot_be_stored_does_not_keep_the_others(
    job: Location, clock: Clock
) -> None:
    writer = JobWriter(job, "host-0", clock=clock)
    Path(job.url).mkdir(parents=True)
    (Path(job.url) / "comm_ops").write_text("in the way")
    for _ in range(3):
        writer.append("comm_ops", operators(1, end_ns=9))
        writer.append("steps", steps(1))
        writer.flush()
        clock.now_s += 60

    assert not writer.status.ok
    assert files(job.url, "steps/**/*.parquet") != []


def test_an_unreachable_bucket(s3_environment: pytest.MonkeyPatch, clock: Clock) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
    s3_environment.setenv("AWS_ENDPOINT_URL", endpoint)
    writer = JobWriter(job_location("s3://runs", "job-1"), "host-0", buffer_rows=100, clock=clock)
    for step in range(3):
        writer.append("steps", steps(*range(step * 100, step * 100 + 100)))
        clock.now_s += 60
        status = writer.flush()

    assert status.error is not None and endpoint in status.error and "\n" not in status.error
    assert (status.pending_rows, status.dropped_rows) == (100, 200)
    with pytest.raises(SourceError, match=f"no response from {endpoint}"):
        JobReader("s3://runs").refresh()


def test_a_bucket_that_does_not_exist(bucket: str) -> None:
    missing = Location.parse("s3://no-such-bucket/runs")
    with pytest.raises(StoreError, match="no such bucket"):
        missing.put("x", b"")
    with pytest.raises(SourceError, match="no such bucket"):
        JobReader(missing.url).refresh()


_FULL_DISK = """
import resource, sys
from stepscope.store import JobWriter, job_location
from tests.store.samples import steps

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

writer = JobWriter(job_location(sys.argv[1], "job-1"), "host-0", buffer_rows=1000)
writer.append("steps", steps(1))
assert writer.flush().ok
limit(100)  # no file can become larger: a write stops half-way, as on a full disk
writer.append("steps", steps(*range(2, 1502)))
status = writer.flush()
assert not status.ok and status.pending_rows == 1000 and status.dropped_rows == 500, status
limit(resource.RLIM_INFINITY)
if sys.argv[2] == "recovers":
    assert writer.close().ok
"""


@pytest.mark.parametrize("then", ["recovers", "dies"])
def test_a_disk_that_fills_up_half_way_through_a_file(tmp_path: Path, then: str) -> None:
    subprocess.run(
        [sys.executable, "-c", _FULL_DISK, str(tmp_path), then], check=True, cwd=REPOSITORY
    )

    window = JobReader(str(tmp_path)).refresh()

    stored = [1, *range(502, 1502)] if then == "recovers" else [1]
    assert values(window.table("steps"), "step") == stored
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == (
        2 if then == "recovers" else 1
    ), "the half-written file is gone"


def test_a_folder_that_was_deleted_is_written_again(writer: JobWriter, job: Location) -> None:
    writer.append("steps", steps(1))
    writer.flush()
    shutil.rmtree(job.url)
    writer.append("steps", steps(2))

    assert writer.flush().ok
    assert values(JobReader(job.url).refresh().table("steps"), "step") == [1, 2]
