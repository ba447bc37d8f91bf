"""A job folder that is deleted while it is written."""

from __future__ import annotations

import shutil
from pathlib import Path

from stepscope.store.location import Location
from stepscope.store.reader import JobReader
from stepscope.store.writer import JobWriter
from stepscope.trace import Host, Job

STEP = {"rank": [0], "step": [1], "start_ns": [1], "duration_ns": [1]}


def test_job_json_is_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    writer = JobWriter(Location.parse(str(folder)), "host-0")
    writer.write_job(Job("job", 1, (Host("host-0", (0,)),)))
    writer.append("steps", STEP)
    assert writer.flush().ok
    shutil.rmtree(folder)
    writer.append("steps", STEP)
    assert writer.flush().ok
    assert (folder / "job.json").exists()
    assert JobReader(str(folder)).refresh().job.hosts[0].ranks == (0,)
