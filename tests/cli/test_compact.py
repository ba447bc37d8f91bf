"""`stepscope compact` on a folder that several hosts wrote."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stepscope.cli import main
from stepscope.store import JobReader, JobWriter, job_location
from stepscope.trace import Job

Capture = pytest.CaptureFixture[str]
STEPS = {"rank": [0], "step": [1], "start_ns": [0], "duration_ns": [1]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two hosts, two files each, an hour old."""
    for host in ("host-0", "host-0", "host-1", "host-1"):
        writer = JobWriter(job_location(str(tmp_path), "job"), host)
        writer.write_job(Job("job", 1))
        writer.append("steps", STEPS)
        writer.flush()
    for file in tmp_path.rglob("*.parquet"):
        hour_ago = file.stat().st_mtime - 3600
        os.utime(file, (hour_ago, hour_ago))
    return tmp_path / "job"


def test_compact_prints_what_it_did(folder: Path, capsys: Capture) -> None:
    assert main(["compact", str(folder), "--host", "host-1"]) == 0
    assert main(["compact", str(folder)]) == 0
    assert main(["compact", str(folder)]) == 0
    assert capsys.readouterr().err.splitlines() == [
        f"stepscope: {folder}: merged 2 files into 1",
        f"stepscope: {folder}: merged 2 files into 1",
        f"stepscope: {folder}: nothing to merge",
    ]
    table = JobReader(str(folder)).refresh().table("steps")
    assert table is not None and len(table) == 4


def test_old_files_are_dropped_when_asked(folder: Path, capsys: Capture) -> None:
    assert main(["compact", str(folder), "--keep-hours", "0.5", "--keep-gb", "1"]) == 0
    said = capsys.readouterr().err
    assert said == f"stepscope: {folder}: nothing to merge, deleted 4 old files\n"
    assert not list(folder.rglob("*.parquet")) and (folder / "job.json").exists()


def test_a_folder_that_is_no_job(tmp_path: Path, capsys: Capture) -> None:
    assert main(["compact", str(tmp_path / "nowhere")]) == 2
    assert "no such folder" in capsys.readouterr().err
