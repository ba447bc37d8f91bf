"""A reader that follows a job while it is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from stepscope.errors import FormatError, SourceError
from stepscope.store import JobReader, JobWriter, Location
from stepscope.store.layout import is_growing
from stepscope.trace import Job
from stepscope.window import Table

from .samples import files, operators, pairs, steps, values, write_beside


def test_nothing_new_is_the_same_window(writer: JobWriter, reader: JobReader) -> None:
    writer.append("steps", steps(1))
    writer.flush()
    before = reader.refresh()
    assert reader.refresh() is before

    writer.append("steps", steps(2))
    writer.flush()
    assert values(reader.refresh().table("steps"), "step") == [1, 2]


def test_reading_once_gives_the_same_and_can_be_repeated(
    writer: JobWriter, reader: JobReader
) -> None:
    writer.append("steps", steps(1))
    writer.append("comm_ops", operators(1, end_ns=9))
    writer.flush()
    once, followed = reader.read(), reader.refresh()
    for table, rows in followed.tables.items():
        assert all(values(once.tables[table], name) == values(rows, name) for name in rows.columns)

    writer.append("steps", steps(2))
    writer.flush()
    assert values(reader.read().table("steps"), "step") == [1, 2]


def test_only_what_changed_is_read_again(
    job: Location, reader: JobReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [JobWriter(job, f"host-{number}") for number in range(5)]
    for host in hosts:
        host.append("steps", steps(1))
        host.flush()
    window = reader.refresh()
    got: list[str] = []
    get = Location.get

    def counting(self: Location, path: str) -> bytes | None:
        got.append(path)
        return get(self, path)

    monkeypatch.setattr(Location, "get", counting)

    hosts[3].append("comm_ops", operators(1, end_ns=9))
    hosts[3].flush()

    assert reader.refresh().tables["steps"] is window.tables["steps"]
    assert len(got) == 1 and got[0].startswith("comm_ops/")


def test_a_job_without_a_description_grows_with_its_tables(
    writer: JobWriter, reader: JobReader
) -> None:
    for rank in (3, 7):
        writer.append("steps", steps(1, rank=rank))
        writer.flush()
        assert reader.refresh().job == Job("job-1", rank + 1)
        assert reader.problems == [f"no job.json: assuming a job of {rank + 1} ranks"]


def test_a_description_that_breaks_later_is_remembered(
    writer: JobWriter, reader: JobReader, job: Location
) -> None:
    (Path(job.url)).mkdir(parents=True)
    (Path(job.url) / "job.json").write_text('{"job_id": "mine", "world_size": 8}')
    reader.refresh()
    (Path(job.url) / "job.json").write_text('{"job_id": "mi')

    assert reader.refresh().job == Job("mine", 8)
    assert "job.json" in reader.problems[0]


def test_files_may_go_while_they_are_read(
    writer: JobWriter, reader: JobReader, job: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write_job(Job("job-1", 1))
    writer.append("comm_ops", operators(0, end_ns=9))
    writer.flush()
    reader.refresh()
    writer.replace("comm_ops", "open", operators(1, end_ns=None))
    writer.flush()
    get = Location.get

    def vanishing(self: Location, path: str) -> bytes | None:
        if path.endswith("open.parquet"):
            writer.append("comm_ops", operators(1, end_ns=9))
            writer.replace("comm_ops", "open", operators(end_ns=None))
            writer.flush()
        return get(self, path)

    monkeypatch.setattr(Location, "get", vanishing)
    window = reader.refresh()

    assert pairs(window.table("comm_ops"), "seq", "end_ns") == [(0, 9), (1, 9)]
    assert reader.problems == []


def test_files_that_a_compactor_merges_while_they_are_read(
    writer: JobWriter, reader: JobReader, job: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.append("steps", steps(1))
    writer.flush()
    (small,) = files(job.url)
    get = Location.get

    def merging(self: Location, path: str) -> bytes | None:
        if path == small and (Path(job.url) / small).exists():
            (Path(job.url) / small).rename(Path(job.url) / "steps/merged.parquet")
        return get(self, path)

    monkeypatch.setattr(Location, "get", merging)

    assert values(reader.refresh().table("steps"), "step") == [1]


def test_operators_that_move_on_while_the_reader_meets_their_job(
    writer: JobWriter, reader: JobReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the job's description is there at the first look; then more while each file is read."""
    writer.write_job(Job("job-1", 1))
    writer.flush()
    get = Location.get
    numbers = iter(range(2))

    def meanwhile(self: Location, path: str) -> bytes | None:
        got = get(self, path)
        number = next(numbers, None) if path == "job.json" or is_growing(path) else None
        if number is not None:
            writer.append("comm_ops", operators(number, end_ns=9))
            writer.replace("comm_ops", "open", operators(number + 1, end_ns=None))
            writer.flush()
        return got

    monkeypatch.setattr(Location, "get", meanwhile)
    monkeypatch.setattr("stepscope.store.reader._THREADS", 1)

    assert values(reader.refresh().table("comm_ops"), "seq") == [0, 1]


def test_deleted_files_take_their_rows_with_them(
    writer: JobWriter, reader: JobReader, job: Location
) -> None:
    writer.write_job(Job("job-1", 1))
    writer.append("steps", steps(1))
    writer.flush()
    assert reader.refresh().table("steps") is not None

    for path in files(job.url):
        (Path(job.url) / path).unlink()
    assert reader.refresh().tables == {}


def test_a_job_that_is_deleted_is_gone(writer: JobWriter, reader: JobReader, job: Location) -> None:
    writer.append("steps", steps(1))
    writer.flush()
    reader.refresh()
    Path(job.url).rename(job.url + "-moved")

    with pytest.raises(SourceError, match="is gone"):
        reader.refresh()


def test_a_half_written_file_is_left_out_until_it_is_whole(
    writer: JobWriter, reader: JobReader, job: Location
) -> None:
    writer.write_job(Job("job-1", 1))
    writer.append("steps", steps(1))
    writer.flush()
    whole = (Path(job.url) / files(job.url)[0]).read_bytes()
    late = Path(job.url) / "steps" / "late.parquet"
    late.write_bytes(whole[:100])

    assert values(reader.refresh().table("steps"), "step") == [1]
    assert len(reader.problems) == 1 and "steps/late.parquet" in reader.problems[0]

    late.write_bytes(whole)
    assert values(reader.refresh().table("steps"), "step") == [1, 1]
    assert reader.problems == []


def test_a_job_whose_files_are_all_broken_is_refused_every_time(
    writer: JobWriter, reader: JobReader, job: Location
) -> None:
    writer.append("steps", steps(1))
    writer.flush()
    reader.refresh()
    (Path(job.url) / files(job.url)[0]).write_bytes(b"PAR1")

    for _ in range(2):
        with pytest.raises(FormatError, match="steps/recorder=host-0"):
            reader.refresh()


def test_a_reader_beside_a_writing_process_sees_whole_growing_data(
    job: Location, reader: JobReader
) -> None:
    process = write_beside(job, times=300, max_rows_per_file=40)
    seen, running = {"steps": 0, "comm_ops": 0}, True
    while running:
        running = process.poll() is None
        tables = _look(reader)
        for name, column in (("steps", "step"), ("comm_ops", "seq")):
            numbers = values(tables[name], column) if name in tables else []
            assert numbers == list(range(len(numbers))), "none twice, none missing on its way"
            assert len(numbers) >= seen[name]
            seen[name] = len(numbers)
        assert reader.problems == []
    assert process.returncode == 0
    assert seen == {"steps": 300, "comm_ops": 301}


def _look(reader: JobReader) -> Mapping[str, Table]:
    """No tables until the first file is there."""
    try:
        return reader.refresh().tables
    except SourceError:
        return {}
