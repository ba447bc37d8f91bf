"""The device ledger in a bucket, beside the jobs."""

from __future__ import annotations

from stepscope.devices import Shelf
from stepscope.store import JobWriter, Location, job_location
from stepscope.store.source import open_job
from stepscope.trace import Job
from tests.devices.jobs import GPU, a_job, blame


def test_the_ledger_in_a_bucket(bucket: str) -> None:
    shelf = Shelf(Location.parse(bucket))
    assert shelf.read().jobs == ()
    writer = JobWriter(job_location(bucket, "train"), "host-0")
    writer.write_job(Job("train", 1))
    writer.flush()
    assert shelf.missing(()) == ["train"]
    for writer_host in ("host-0", "host-1", "host-0"):
        shelf.put(a_job("train", 0, blame(0.9, (GPU, 1.0)), writer=writer_host))
    assert [one.job for one in shelf.read().jobs] == ["train"]
    assert shelf.missing(shelf.read().jobs) == []
    assert open_job(bucket).name == "train"
