"""What a store that cannot be written lacks at the end of a run."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from stepscope.processor.folders.jobs import JobFolders
from stepscope.processor.settings import Settings
from stepscope.trace import Host, Job


def noted(tmp_path: Path, store: str) -> str:
    """What is said at the end of a job of three rows, none of which could be stored."""
    folders = JobFolders("host-0", Settings(tmp_path / "p.sock", traces=False))
    folders.open("job", store, Job("job", 1, (Host("host-0", (0,)),)))
    row = {"rank": [0], "step": [1], "start_ns": [1], "duration_ns": [1]}
    for _ in range(3):
        folders.append("job", "steps", row)
    assert folders.flush("job", timeout=60.0) is not None
    (note,) = folders.notes("job")
    folders.close()
    return note


def test_rows_that_are_not_stored_are_summed_up(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("a file where the folder should be")
    said = noted(tmp_path, str(tmp_path))
    assert said == f"{tmp_path / 'job'} lacks 0 lost rows, and 3 that still wait"


def test_rows_of_a_bucket_that_does_not_answer_are_summed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:  # bound, but it does not listen
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        assert (
            noted(tmp_path, "s3://runs/team")
            == "s3://runs/team/job lacks 0 lost rows, and 3 that still wait"
        )
