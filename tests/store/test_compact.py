"""Small files are merged into large ones, and no reader gets a row twice or misses one."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from stepscope.errors import StoreError
from stepscope.store import JobReader, JobWriter, Location, job_location
from stepscope.store.compact import SETTLED_S, Compacted, compact
from stepscope.trace import Job
from stepscope.window import Window

from .conftest import Clock
from .samples import files, operators, pairs, put_parquet, steps, values, write_beside

LATER_S = 1000.0
"""Long enough for files to be quiet."""


def compact_now(job: Location, host: str | None = None, **options: Any) -> Compacted:
    return compact(job, host, now_s=time.time() + LATER_S, **options)


def write_small_files(job: Location, hosts: int = 3, each: int = 4) -> None:
    """Every host has one rank and writes a file per step."""
    for host in range(hosts):
        writer = JobWriter(job, f"host-{host}", max_rows_per_file=1)
        writer.write_job(Job("job-1", hosts))
        for step in range(each):
            writer.append("steps", steps(step, rank=host))
            writer.flush()


def seen(window: Window) -> list[Any]:
    return pairs(window.table("steps"), "rank", "step")


def all_steps(hosts: int = 3, each: int = 4) -> list[Any]:
    return [(rank, step) for rank in range(hosts) for step in range(each)]


@pytest.fixture
def fresh(job: Location) -> Callable[[], Window]:
    return lambda: JobReader(job.url).refresh()


def test_many_small_files_become_one_on_disk_and_in_a_bucket(root: str) -> None:
    job = job_location(root, "job-1")
    write_small_files(job)
    assert compact_now(job) == Compacted(merged=12, into=1)

    [merged] = [entry.path for entry in job.files("steps")]
    assert merged.startswith("steps/sorted/together/")
    assert seen(JobReader(job.url).refresh()) == all_steps()
    assert compact_now(job) == Compacted()


def test_rows_are_sorted_by_rank_and_time(job: Location) -> None:
    write_small_files(job)
    compact_now(job)
    rows = pq.read_table(Path(job.url) / files(job.url)[0])
    assert list(zip(rows["rank"].to_pylist(), rows["step"].to_pylist(), strict=True)) == all_steps()


class CutError(StoreError):
    """The compactor dies here."""


@pytest.mark.parametrize("operations", range(15))
def test_readers_see_each_row_once_at_any_moment_and_after_any_crash(
    job: Location, monkeypatch: pytest.MonkeyPatch, operations: int
) -> None:
    """Whether they look for the first time or have followed from before."""
    write_small_files(job)
    following = JobReader(job.url)
    left = iter(range(operations))

    def watched(what: str) -> None:
        real = getattr(Location, what)

        def operation(self: Location, *arguments: Any) -> None:
            if self.url == job.url and next(left, None) is None:
                raise CutError("the machine is gone")
            real(self, *arguments)
            assert seen(following.refresh()) == all_steps()
            assert seen(JobReader(job.url).read()) == all_steps()

        monkeypatch.setattr(Location, what, operation)

    monkeypatch.setattr("stepscope.store.compact._THREADS", 1)
    with monkeypatch.context() as patched:
        assert patched is not None
        watched("put")
        watched("delete")
        died = False
        try:
            compact_now(job)
        except CutError:
            died = True
        assert died == (operations < 13), "one put and twelve deletes"
    monkeypatch.undo()

    assert seen(following.refresh()) == all_steps()
    compact_now(job)
    assert len(files(job.url)) == 1, "what the dead one left is gone"
    assert seen(following.refresh()) == seen(JobReader(job.url).refresh()) == all_steps()


def test_two_that_merge_the_same_files_at_once(
    job: Location, monkeypatch: pytest.MonkeyPatch, fresh: Callable[[], Window]
) -> None:
    """The second comes and goes whole while the first has read and not yet written."""
    write_small_files(job)
    put, others = Location.put, iter([1])

    def late(self: Location, path: str, data: bytes) -> None:
        if next(others, None) is not None:
            compact_now(job)
        put(self, path, data)

    monkeypatch.setattr(Location, "put", late)
    compact_now(job)
    monkeypatch.undo()
    assert len(files(job.url)) == 2
    assert seen(fresh()) == all_steps()

    assert compact(job, now_s=time.time() + LATER_S + SETTLED_S).merged == 2
    assert len(files(job.url)) == 1
    assert seen(fresh()) == all_steps()


def test_two_merged_files_of_which_one_has_more_rows(
    job: Location, tmp_path: Path, fresh: Callable[[], Window]
) -> None:
    """Each holds rows that the other lacks, and some that it has, too."""
    write_small_files(job, hosts=2)
    before = tmp_path / "before"
    shutil.copytree(job.url, before)
    for path in files(job.url, "steps/recorder=host-1/*"):
        (Path(job.url) / path).unlink()
    compact_now(job)
    for path in files(before)[2:]:
        put = Path(job.url) / path
        put.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(before / path, put)
    # as by a compactor that has not listed the first one's file
    shutil.move(Path(job.url) / "steps/sorted", tmp_path / "sorted")
    compact_now(job)
    (merged,) = files(tmp_path / "sorted", "together/*")
    shutil.copy(tmp_path / "sorted" / merged, Path(job.url) / "steps/sorted/together")
    assert len(files(job.url)) == 2

    assert seen(fresh()) == all_steps(hosts=2)


def test_a_file_that_gains_rows_after_it_was_merged(
    job: Location, fresh: Callable[[], Window]
) -> None:
    """As of a processor whose store was gone for long."""
    writer = JobWriter(job, "host-0")
    writer.append("steps", steps(0, 1))
    writer.flush()
    JobWriter(job, "host-1").write_job(Job("job-1", 1))
    other = JobWriter(job, "host-1")
    other.append("steps", steps(0, rank=1))
    other.flush()
    following = JobReader(job.url)
    following.refresh()
    assert compact_now(job).merged == 2

    writer.append("steps", steps(2))
    writer.flush()
    wanted = [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert seen(fresh()) == seen(following.refresh()) == wanted

    compact(job, now_s=time.time() + LATER_S + SETTLED_S)
    assert len(files(job.url)) == 1
    assert seen(fresh()) == seen(following.refresh()) == wanted


def test_a_host_merges_its_own_files_only_and_under_its_name(
    job: Location, fresh: Callable[[], Window]
) -> None:
    write_small_files(job, hosts=2)
    assert compact_now(job, "host-1") == Compacted(merged=4, into=1)

    assert len(files(job.url, "steps/recorder=host-0/*")) == 4
    assert files(job.url, "steps/recorder=host-1/*") == []
    assert len(files(job.url, "steps/sorted/recorder=host-1/*")) == 1
    assert seen(fresh()) == all_steps(hosts=2)


def test_what_was_merged_is_merged_again_an_hour_later(
    job: Location, fresh: Callable[[], Window]
) -> None:
    write_small_files(job, hosts=2)
    compact_now(job, "host-0")
    compact_now(job, "host-1")
    assert compact_now(job) == Compacted()

    assert compact(job, now_s=time.time() + LATER_S + SETTLED_S) == Compacted(merged=2, into=1)
    assert seen(fresh()) == all_steps(hosts=2)


def test_files_that_still_grow_are_left_alone(job: Location) -> None:
    write_small_files(job)
    assert compact(job) == Compacted()


def test_outstanding_operators_are_left_alone(job: Location, fresh: Callable[[], Window]) -> None:
    for number in range(3):
        writer = JobWriter(job, "host-0")
        writer.append("comm_ops", operators(number, end_ns=9))
        writer.replace("comm_ops", "open", operators(9, end_ns=None))
        writer.flush()
    assert compact_now(job) == Compacted(merged=3, into=1)
    assert files(job.url, "comm_ops/recorder=host-0/*") == ["comm_ops/recorder=host-0/open.parquet"]
    assert pairs(fresh().table("comm_ops"), "seq", "end_ns") == [(0, 9), (1, 9), (2, 9), (9, None)]


def test_what_is_not_ours_stays_as_it_is(job: Location, fresh: Callable[[], Window]) -> None:
    """Files of other programs, of versions that know more columns, and damaged ones."""
    write_small_files(job, hosts=1)
    folder = Path(job.url) / "steps"
    put_parquet(folder / "all.parquet", steps(90))
    names = files(job.url, "steps/recorder=host-0/*")
    put_parquet(Path(job.url) / names[0], {**steps(0), "colour": ["red"]})
    (Path(job.url) / names[1]).write_bytes(b"PAR1 no more")
    assert compact_now(job) == Compacted(merged=2, into=1)

    kept = files(job.url, "steps/recorder=host-0/*")
    assert kept == names[:2]
    assert values(fresh().table("steps"), "step") == [0, 2, 3, 90]


def test_a_missing_column_is_not_invented(job: Location, fresh: Callable[[], Window]) -> None:
    calls = operators(1, 2, end_ns=None)
    del calls["start_ns"], calls["end_ns"]
    for _ in range(2):
        writer = JobWriter(job, "host-0")
        writer.append("comm_ops", calls)
        writer.flush()
    before = fresh().table("comm_ops")
    assert compact_now(job).into == 1
    after = fresh().table("comm_ops")
    assert before is not None and after is not None
    assert set(after.columns) == set(before.columns) and not after.has("end_ns")


def test_an_old_file_gains_no_more_rows(job: Location, clock: Clock) -> None:
    """Merging relies on it."""
    writer = JobWriter(job, "host-0", clock=clock)
    for _ in range(2):
        writer.append("steps", steps(1))
        writer.flush()
        clock.now_s += 121
    assert len(files(job.url)) == 2


def test_a_reader_beside_a_writer_and_a_compactor(job: Location, reader: JobReader) -> None:
    """Each file is written once, so that all are quiet at once."""
    process = write_beside(job, times=40, max_rows_per_file=1)
    looked, running = 0, True
    while running:
        running = process.poll() is None
        if not (Path(job.url) / "job.json").exists():
            continue
        compact(job, quiet_s=0.0, now_s=time.time() + 1)
        tables = reader.refresh().tables
        for name, column in (("steps", "step"), ("comm_ops", "seq")):
            numbers = values(tables[name], column) if name in tables else []
            assert numbers == list(range(len(numbers))), "none twice, none missing"
            looked = max(looked, len(numbers))
    assert process.returncode == 0
    assert looked == 41
