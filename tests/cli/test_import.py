"""`stepscope import`: a recording becomes a job folder that says the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from stepscope.cli import main
from stepscope.errors import StoreError

from .recordings import write_dumps, write_traces

Capture = pytest.CaptureFixture[str]


def diagnosed(source: Path, capsys: Capture) -> Any:
    assert main(["diagnose", str(source), "--json"]) == 1
    return json.loads(capsys.readouterr().out)


def refused(capsys: Capture, *arguments: str | Path) -> str:
    """One line that says why."""
    assert main(["import", *map(str, arguments)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("stepscope: ")
    assert shown.err.count("\n") == 1
    return shown.err


def slow_traces(folder: Path) -> Path:
    return write_traces(folder, slow_rank=2)


def hanging_dumps(folder: Path) -> Path:
    return write_dumps(folder, absent=1)


@pytest.mark.parametrize("write", [slow_traces, hanging_dumps])
def test_the_job_folder_gives_the_same_diagnosis_as_the_recording(
    tmp_path: Path, capsys: Capture, write: Callable[[Path], Path]
) -> None:
    recording = write(tmp_path / "monday")
    before = diagnosed(recording, capsys)
    assert main(["import", str(recording), "--store", str(tmp_path / "store")]) == 0
    job = tmp_path / "store" / "monday"
    shown = capsys.readouterr()
    assert shown.err == f"stepscope: wrote {job}; next: `stepscope diagnose {job}`\n"
    assert diagnosed(job, capsys) == before


def test_a_job_can_have_another_name(tmp_path: Path, capsys: Capture) -> None:
    recording = slow_traces(tmp_path / "traces")
    assert main(["import", str(recording), "--store", str(tmp_path), "--job", "llama 70b/4"]) == 0
    [job] = (path.parent for path in tmp_path.glob("*/job.json"))
    assert str(job) in capsys.readouterr().err
    assert diagnosed(job, capsys)["job_id"] == "llama 70b/4"


def test_the_store_is_made_in_the_current_folder(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_traces(tmp_path / "traces")
    monkeypatch.chdir(tmp_path)
    assert main(["import", "traces"]) == 0
    assert diagnosed(Path("stepscope-runs/traces"), capsys)["verdicts"]
    assert diagnosed(Path("stepscope-runs"), capsys)["verdicts"], "the only job of the store"


def test_a_name_stands_for_one_job(tmp_path: Path, capsys: Capture) -> None:
    recording, store = slow_traces(tmp_path / "traces"), tmp_path / "store"
    assert main(["import", str(recording), "--store", str(store)]) == 0
    before = sorted(store.rglob("*"))
    capsys.readouterr()
    assert "choose another name with --job" in refused(capsys, recording, "--store", store)
    assert sorted(store.rglob("*")) == before
    assert main(["import", str(recording), "--store", str(store), "--job", "again"]) == 0


def test_parts_left_out_are_listed(tmp_path: Path, capsys: Capture) -> None:
    recording = slow_traces(tmp_path / "traces")
    (recording / "rank3.json").write_bytes(b"")
    assert main(["import", str(recording), "--store", str(tmp_path / "store")]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "rank3.json" in lines[0]


def test_every_row_of_the_recording_is_written(tmp_path: Path) -> None:
    recording = slow_traces(tmp_path / "traces")
    assert main(["import", str(recording), "--store", str(tmp_path / "store")]) == 0
    for table, per_step in {"steps": 1, "phases": 3, "kernels": 4, "comm_ops": 1}.items():
        files = (tmp_path / "store" / "traces" / table).rglob("*.parquet")
        assert sum(pq.read_metadata(file).num_rows for file in files) == 4 * 6 * per_step, table


def test_a_job_folder_cannot_be_imported(tmp_path: Path, capsys: Capture) -> None:
    recording = slow_traces(tmp_path / "traces")
    assert main(["import", str(recording), "--store", str(tmp_path / "store")]) == 0
    capsys.readouterr()
    assert "is already a job folder" in refused(capsys, tmp_path / "store" / "traces")


@pytest.mark.parametrize("name", ["nothing", "empty", "other"])
def test_what_cannot_be_imported(tmp_path: Path, capsys: Capture, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("nothing to see here")
    assert str(tmp_path / name) in refused(capsys, tmp_path / name, "--store", tmp_path / "store")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("store", ["a-file", "a-file/deep/store", "ftp://host/runs", "s3://"])
def test_a_store_that_cannot_be_written(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    recording = slow_traces(tmp_path / "traces")
    (tmp_path / "a-file").write_text("I was here first")
    monkeypatch.chdir(tmp_path)
    assert store in refused(capsys, recording, "--store", store)
    assert (tmp_path / "a-file").read_text() == "I was here first"


@pytest.mark.parametrize(
    ("failure", "said"),
    [(StoreError("the disk is full"), "stepscope: the disk is full\n"), (KeyboardInterrupt(), "")],
)
def test_a_failed_import_leaves_no_folder(
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException,
    said: str,
) -> None:
    from stepscope.store.location import Location

    put = Location.put

    def fail_at_the_kernels(location: Location, path: str, data: bytes) -> None:
        if path.startswith("kernels"):
            raise failure
        put(location, path, data)

    recording = slow_traces(tmp_path / "traces")
    command = ["import", str(recording), "--store", str(tmp_path / "store")]
    with monkeypatch.context() as patched:
        patched.setattr(Location, "put", fail_at_the_kernels)
        assert main(command) in (2, 130)
    assert capsys.readouterr().err == said
    assert list((tmp_path / "store").iterdir()) == []
    assert main(command) == 0
