"""What a store that cannot be written lacks at the end of a run."""

from __future__ import annotations

from pathlib import Path

from stepscope.processor.folders.jobs import JobFolders
from stepscope.processor.settings import Settings
from stepscope.trace import Host, Job


def test_rows_that_are_not_stored_are_summed_up(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("a file where the folder should be")
    folders = JobFolders("host-0", Settings(tmp_path / "p.sock", traces=False))
    folders.open("job", str(tmp_path), Job("job", 1, (Host("host-0", (0,)),)))
    row = {"rank": [0], "step": [1], "start_ns": [1], "duration_ns": [1]}
    for _ in range(3):
        folders.append("job", "steps", row)
    assert folders.flush("job", timeout=60.0) is not None
    (note,) = folders.notes("job")
    assert note == f"{tmp_path / 'job'} lacks 0 lost rows, and 3 that still wait"
    folders.close()
