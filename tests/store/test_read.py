"""Sources that are not quite what they should be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from stepscope.errors import FormatError, SourceError, UsageError
from stepscope.store import JobReader, JobWriter, job_location
from stepscope.trace import UNKNOWN_PEER, Host, Job
from stepscope.window import Strings

from .samples import operators, pairs, put_parquet, steps, values

LATE_NS = 1_766_000_000_000_000_001
"""A time whose last digit a float64 cannot hold."""


def write_job(folder: Path, **more: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"schema": 1, "job_id": "mine", "world_size": 4, "hosts": [], **more})
    (folder / "job.json").write_text(text)


def read_steps(folder: Path, column: str) -> list[Any]:
    return values(JobReader(str(folder)).refresh().table("steps"), column)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere", "no such folder"),
        ("a-file", "is a file"),
        ("empty", "nothing at"),
        ("begun", "is empty: nothing was recorded there yet"),
        ("papers", r"no job in .*expected job.json.*found drafts/, a.pdf"),
    ],
)
def test_no_job_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a-file").touch()
    Path("empty").mkdir()
    Path("begun/topology").mkdir(parents=True)
    Path("papers/drafts").mkdir(parents=True)
    Path("papers/a.pdf").touch()
    with pytest.raises(SourceError, match=message) as error:
        JobReader(source).refresh()
    assert str(tmp_path / source) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("source", ["ftp://host/x", "s3://", "with\0null"])
def test_no_source_at_all(source: str) -> None:
    with pytest.raises(UsageError, match="cannot open"):
        JobReader(source).refresh()


def test_a_bucket_with_nothing_in_it(bucket: str) -> None:
    with pytest.raises(SourceError, match=f"nothing at {bucket}"):
        JobReader(bucket).refresh()


def test_a_file_url_and_a_link_name_a_folder_too(tmp_path: Path) -> None:
    write_job(tmp_path / "my job")
    (tmp_path / "link").symlink_to(tmp_path / "my job")
    for source in (
        f"file://{tmp_path}/my%20job",
        f"{tmp_path}/link",
        f"{tmp_path}/link/../my job/",
    ):
        assert JobReader(source).refresh().job.job_id == "mine"


def test_a_store_with_one_job_is_that_job_and_with_several_a_question(root: str) -> None:
    for name in ("first", "second"):
        writer = JobWriter(job_location(root, name), "host-0")
        writer.write_job(Job(name, 1))
        writer.flush()
        if name == "first":
            assert JobReader(root).refresh().job.job_id == "first"

    with pytest.raises(SourceError, match=f"has 2 jobs.*choose one, as in {root}/"):
        JobReader(root).refresh()


def test_an_empty_job_is_a_window_without_tables(tmp_path: Path) -> None:
    write_job(tmp_path)
    window = JobReader(str(tmp_path)).refresh()
    assert window.job == Job("mine", 4) and window.tables == {}


def test_a_job_without_description_is_derived(tmp_path: Path) -> None:
    put_parquet(tmp_path / "mine/steps/a.parquet", steps(1, rank=5))
    reader = JobReader(str(tmp_path / "mine"))
    assert reader.refresh().job == Job("mine", 6)
    assert reader.problems == ["no job.json: assuming a job of 6 ranks"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a job description"),
        ("[]", "is not a job description"),
        ('{"job_id": "x"}', "lacks the key 'world_size'"),
        ('{"job_id": "x", "world_size": "many"}', "is not a job description"),
        ('{"job_id": "x", "world_size": 1, "hosts": 3}', "is not a job description"),
        ("[" * 100_000, "is not a job description"),
    ],
)
def test_a_description_that_is_none(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(FormatError, match=rf"{tmp_path}/job.json {message}") as error:
        JobReader(str(tmp_path)).refresh()
    assert "\n" not in str(error.value)


def test_folders_of_any_depth_and_names(tmp_path: Path) -> None:
    write_job(tmp_path)
    for step, path in enumerate(("a", "host=h/b", "day=1/host=h/rank=7/c", "x/y/z/d")):
        put_parquet(tmp_path / f"steps/{path}.parquet", steps(step))
    for path in ("steps/_temporary/a", "steps/.hidden", "other/e"):
        put_parquet(tmp_path / f"{path}.parquet", steps(9))
    (tmp_path / "steps/notes.txt").write_text("not a table")
    reader = JobReader(str(tmp_path))

    assert values(reader.refresh().table("steps"), "step") == [0, 1, 2, 3]
    assert reader.problems == []


@pytest.mark.parametrize(
    "convert",
    [
        lambda ns: pa.array(ns, pa.int64()).cast(pa.uint64()),
        lambda ns: pa.array(ns, pa.timestamp("ns")),
        lambda ns: pa.array(ns, pa.timestamp("ns", "Asia/Tokyo")),
        lambda ns: pa.array(ns, pa.duration("ns")),
        lambda ns: pa.array(ns, pa.int64()).cast(pa.decimal128(19)),
        lambda ns: pa.array(ns, pa.int64()).cast(pa.string()),
    ],
    ids=["uint64", "timestamp", "zoned timestamp", "duration", "decimal", "text"],
)
def test_times_in_other_types(tmp_path: Path, convert: Callable[[list[int]], Any]) -> None:
    put_parquet(tmp_path / "steps/a.parquet", steps(1) | {"start_ns": convert([LATE_NS])})
    assert read_steps(tmp_path, "start_ns") == [LATE_NS]


def test_ranks_and_peers_are_kept_in_four_bytes(tmp_path: Path) -> None:
    write_job(tmp_path)
    peers = pa.array([None, 2**31 - 1], pa.int32())
    rows = operators(0, 1, end_ns=9) | {"op": ["Send", "Send"], "peer": peers}
    put_parquet(tmp_path / "comm_ops/a.parquet", rows)
    comm = JobReader(str(tmp_path)).read().tables["comm_ops"]
    kept = [np.asarray(comm.columns[name]).dtype for name in ("rank", "peer", "seq")]
    assert kept == [np.int32, np.int32, np.int64]
    assert comm.ints("peer").tolist() == [UNKNOWN_PEER, 2**31 - 1]
    assert comm.ints("peer").dtype == np.int64


def test_coarse_timestamps_become_nanoseconds(tmp_path: Path) -> None:
    micros = pa.array([1_766_000_000_000_001], pa.timestamp("us"))
    put_parquet(tmp_path / "steps/a.parquet", steps(1) | {"start_ns": micros})
    assert read_steps(tmp_path, "start_ns") == [1_766_000_000_000_001_000]


def test_small_integers_and_whole_floats(tmp_path: Path) -> None:
    """What pandas makes of an integer column with holes."""
    put_parquet(
        tmp_path / "steps/a.parquet",
        {
            "rank": np.array([0, 1], np.uint8),
            "step": np.array([7.0, np.nan]),
            "start_ns": np.array([1, 2], np.int16),
            "duration_ns": np.array([3, 4], np.uint32),
        },
    )
    assert read_steps(tmp_path, "step") == [7, None]
    assert read_steps(tmp_path, "duration_ns") == [3, 4]


@pytest.mark.parametrize("wrong", [[1.5], [float(LATE_NS)], ["soon"], [[1]], [2**64 - 1]])
def test_no_integer_is_made_up(tmp_path: Path, wrong: Any) -> None:
    values = pa.array(wrong, pa.uint64()) if wrong == [2**64 - 1] else wrong
    put_parquet(tmp_path / "steps/a.parquet", steps(1) | {"start_ns": values})
    with pytest.raises(FormatError, match=r"column start_ns holds .*, not int64"):
        JobReader(str(tmp_path)).refresh()


@pytest.mark.parametrize(
    "type_",
    [
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int64(), pa.large_string()),
    ],
    ids=str,
)
@pytest.mark.parametrize("arrow_schema", [True, False])
def test_strings_in_other_types(tmp_path: Path, type_: Any, arrow_schema: bool) -> None:
    rows: dict[str, Any] = operators(1, 2, 3, end_ns=9)
    plain = pa.array(["dp-0", None, "überall"])
    rows["group"] = (
        plain.cast(type_)
        if not pa.types.is_dictionary(type_)
        else (plain.cast(type_.value_type).dictionary_encode().cast(type_))
    )
    put_parquet(tmp_path / "comm_ops/a.parquet", rows, store_schema=arrow_schema)
    put_parquet(tmp_path / "comm_ops/b.parquet", operators(4, end_ns=9))

    table = JobReader(str(tmp_path)).refresh().table("comm_ops")

    assert values(table, "group") == ["dp-0", None, "überall", "dp-0"]
    group = table.strings("group") if table else Strings.of([])
    assert sorted(group.values) == ["dp-0", "überall"]


def test_a_foreign_table_says_what_it_lacks(tmp_path: Path) -> None:
    put_parquet(tmp_path / "steps/a.parquet", {"rank": [0], "began": [1]})
    with pytest.raises(FormatError) as error:
        JobReader(str(tmp_path)).refresh()
    assert str(error.value) == (
        f"no table of {tmp_path} can be used: "
        "steps/a.parquet lacks duration_ns, step of table steps; it has began, rank"
    )


def test_one_foreign_file_among_good_ones_is_left_out(tmp_path: Path) -> None:
    write_job(tmp_path)
    put_parquet(tmp_path / "steps/a.parquet", {"rank": [0], "began": [1]})
    put_parquet(tmp_path / "steps/b.parquet", steps(1))
    (tmp_path / "steps/c.parquet").write_bytes(b"")
    reader = JobReader(str(tmp_path))

    assert values(reader.refresh().table("steps"), "step") == [1]
    assert [problem.split(" ")[0] for problem in reader.problems] == [
        "steps/a.parquet:",
        "steps/c.parquet:",
    ]


def test_columns_a_collector_may_leave_out(tmp_path: Path) -> None:
    rows: dict[str, Any] = operators(1, end_ns=9)
    for column in ("step", "peer", "bytes", "start_ns"):
        del rows[column]
    put_parquet(tmp_path / "comm_ops/a.parquet", rows | {"colour": ["red"]})

    table = JobReader(str(tmp_path)).refresh().table("comm_ops")

    assert values(table, "step") == [None] and values(table, "bytes") == [None]
    assert values(table, "peer") == [-1], "a collective has none"
    assert table is not None and not table.has("start_ns") and not table.has("colour")


def test_a_column_that_some_files_lack_is_null_there(tmp_path: Path) -> None:
    host_calls: dict[str, Any] = operators(1, end_ns=None)
    del host_calls["end_ns"]
    put_parquet(tmp_path / "comm_ops/a.parquet", host_calls)
    put_parquet(tmp_path / "comm_ops/b.parquet", operators(2, end_ns=9))

    assert values(JobReader(str(tmp_path)).refresh().table("comm_ops"), "end_ns") == [None, 9]


def test_columns_that_only_the_path_names(tmp_path: Path) -> None:
    """What partitioning writers leave: the partition columns are not in the files."""
    for rank in (0, 1):
        rows: dict[str, Any] = operators(rank, end_ns=9) | {"rank": [rank]}
        ds.write_dataset(
            pa.table(rows),
            tmp_path / "comm_ops",
            format="parquet",
            partitioning=["rank", "op"],
            partitioning_flavor="hive",
            existing_data_behavior="overwrite_or_ignore",
        )

    table = JobReader(str(tmp_path)).refresh().table("comm_ops")

    assert pairs(table, "rank", "op", "seq") == [(0, "AllReduce", 0), (1, "AllReduce", 1)]


def test_the_file_is_believed_before_its_path(tmp_path: Path) -> None:
    put_parquet(tmp_path / "steps/rank=7/step=x/a.parquet", steps(1, rank=3))
    assert read_steps(tmp_path, "rank") == [3]


def test_rows_come_by_rank_and_time(tmp_path: Path) -> None:
    put_parquet(tmp_path / "steps/a.parquet", steps(3, 1, rank=1))
    put_parquet(tmp_path / "steps/b.parquet", steps(4, 2, rank=0))
    assert read_steps(tmp_path, "step") == [2, 4, 1, 3]


def test_a_column_that_is_there_twice(tmp_path: Path) -> None:
    twice = pa.table([[0], [0], [1], [1], [1]], ["rank", "rank", "step", "start_ns", "duration_ns"])
    (tmp_path / "steps").mkdir()
    pa.parquet.write_table(twice, tmp_path / "steps/a.parquet")
    with pytest.raises(FormatError, match="has a column twice"):
        JobReader(str(tmp_path)).refresh()


def test_a_described_host_keeps_its_name(tmp_path: Path) -> None:
    write_job(tmp_path, hosts=[{"name": "host-9", "ranks": [3, 2]}])
    assert JobReader(str(tmp_path)).refresh().job.hosts == (Host("host-9", (3, 2)),)


def test_rows_of_many_files_and_ranks_are_sorted_as_if_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some ranks at a time; a file may end amid a rank, and a host's rows come by time."""
    monkeypatch.setattr("stepscope.store.order.BLOCK", 3)
    numbers = ((0, (4, 1)), (1, (3, 9)), (0, (2,)), (3, (5, 7)), (2, (8, 6)), (4, (1, 2)))
    for file, (rank, moments) in enumerate(numbers):
        put_parquet(tmp_path / f"steps/{file}.parquet", steps(*moments, rank=rank))
    table = JobReader(str(tmp_path)).refresh().table("steps")
    assert pairs(table, "rank", "step") == [
        (0, 1), (0, 2), (0, 4), (1, 3), (1, 9), (2, 6), (2, 8), (3, 5), (3, 7), (4, 1), (4, 2)
    ]  # fmt: skip
