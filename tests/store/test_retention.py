"""Retention deletes the oldest files first, and never the job's description."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stepscope.store import JobReader, JobWriter, Location, job_location
from stepscope.store.compact import compact
from stepscope.store.location import Entry
from stepscope.store.retention import Keep, expired, prune
from stepscope.trace import Host, Job

from .samples import files, operators, put_parquet, steps, values

NOW_S = 1_765_972_800.0
"""Noon: the hours of this morning are of one day."""
HOUR_S = 3600.0


def entry(number: int, hours_old: float, size_bytes: int = 100) -> Entry:
    path = f"steps/recorder=host-0/20260101T000000Z-0123abcd-{number:06d}.parquet"
    return Entry(path, size_bytes, None, int((NOW_S - hours_old * HOUR_S) * 1e9))


def numbers(entries: list[Entry]) -> list[int]:
    return [int(one.path[-14:-8]) for one in entries]


def test_by_age_by_size_and_by_both() -> None:
    there = [entry(hour, hours_old=hour) for hour in range(10)]
    assert numbers(expired(there, Keep(seconds=7.5 * HOUR_S), NOW_S)) == [9, 8]
    # the newest one still grows, counts for nothing and stays
    assert numbers(expired(there, Keep(size_bytes=350), NOW_S)) == [9, 8, 7, 6, 5, 4]
    assert numbers(expired(there, Keep(7.5 * HOUR_S, 800), NOW_S)) == [9, 8]
    assert expired(there, Keep(seconds=100 * HOUR_S, size_bytes=10**6), NOW_S) == []


def write_hours(job: Location, host: str, *hours_old: int, rank: int = 0) -> None:
    """A file of each table per hour, and a trace."""
    for hours in hours_old:
        moment = NOW_S - hours * HOUR_S
        writer = JobWriter(job, host, clock=partial(float, moment))
        writer.write_job(Job("job-1", 2, hosts=(Host(host, (rank,)),)))
        before = set(files(job.url))
        writer.append("steps", steps(hours, rank=rank))
        writer.append("comm_ops", operators(hours, end_ns=9))
        writer.replace("comm_ops", "open", operators(99, end_ns=None))
        writer.flush()
        trace = Path(job.url) / f"traces/rank={rank}/{hours}.gz"
        trace.parent.mkdir(parents=True, exist_ok=True)
        trace.write_bytes(b"trace")
        new = {*files(job.url), str(trace.relative_to(job.url))} - before
        for path in new:
            os.utime(Path(job.url) / path, (moment, moment))


def left(job: Location) -> list[Any]:
    return values(JobReader(job.url).refresh().table("steps"), "step")


def test_old_rows_and_traces_go_from_all_tables_and_the_job_stays(job: Location) -> None:
    write_hours(job, "host-0", 30, 20, 10)
    assert prune(job, Keep(seconds=25 * HOUR_S), now_s=NOW_S) == 3

    assert left(job) == [10, 20]
    assert values(JobReader(job.url).refresh().table("comm_ops"), "seq") == [10, 20, 99]
    assert files(job.url, "traces/**/*") == ["traces/rank=0/10.gz", "traces/rank=0/20.gz"]
    assert prune(job, Keep(seconds=0.5 * HOUR_S), now_s=NOW_S) == 6
    assert JobReader(job.url).refresh().job.job_id == "job-1"
    assert files(job.url) == ["comm_ops/recorder=host-0/open.parquet"]


def test_a_host_drops_what_is_its_own(job: Location) -> None:
    write_hours(job, "host-0", 30, 10)
    write_hours(job, "host-1", 30, 10, rank=1)
    for host in ("host-0", "host-1"):
        counters = Path(job.url) / f"traces/host={host}/30.gz"
        counters.parent.mkdir()
        counters.write_bytes(b"trace")
        os.utime(counters, (0, 0))
    assert prune(job, Keep(seconds=25 * HOUR_S), "host-1", NOW_S) == 4

    assert left(job) == [10, 30, 10]
    assert files(job.url, "traces/**/30.gz") == ["traces/host=host-0/30.gz", "traces/rank=0/30.gz"]


def test_merged_files_are_as_old_as_the_newest_row_in_them(job: Location) -> None:
    write_hours(job, "host-0", 49, 48, 2, 1)
    compact(job, now_s=NOW_S)
    assert len(files(job.url, "steps/sorted/**/*.parquet")) == 2, (
        "a day's rows are not merged with another's"
    )

    prune(job, Keep(seconds=25 * HOUR_S), now_s=NOW_S)
    assert left(job) == [1, 2]


def test_files_of_others_are_not_ours_to_drop(job: Location) -> None:
    write_hours(job, "host-0", 30)
    put_parquet(Path(job.url) / "steps/all.parquet", steps(1))
    os.utime(Path(job.url) / "steps/all.parquet", (0, 0))
    prune(job, Keep(seconds=HOUR_S))
    assert left(job) == [1]


def test_nothing_is_deleted_without_limits(job: Location) -> None:
    write_hours(job, "host-0", 1000)
    assert prune(job, Keep()) == 0
    assert left(job) == [1000]


def test_in_a_bucket(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_location(bucket, "job-1")
    writer = JobWriter(job, "host-0")
    writer.write_job(Job("job-1", 1))
    writer.append("steps", steps(1))
    writer.flush()
    assert prune(job, Keep(seconds=HOUR_S), now_s=time.time() + HOUR_S / 2) == 0
    assert prune(job, Keep(seconds=HOUR_S), now_s=time.time() + 2 * HOUR_S) == 1
    assert [one.path for one in job.files()] == ["job.json", "topology/host-0.json"]
