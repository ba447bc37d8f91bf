"""Writes job.json and the fragments that it is merged from."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from stepscope.errors import FormatError
from stepscope.store.layout import JOB_FILE, TOPOLOGY, fragment_path
from stepscope.store.location import Entry, Location
from stepscope.trace import Job
from stepscope.trace.merging import merge_jobs
from stepscope.trace.parsing import parse_job

_ROUNDS = 5
_THREADS = 8


def publish(location: Location, host: str, job: Job, before: Job | None) -> None:
    """Stores one host's fragment, and rebuilds job.json if more than the time has changed."""
    location.put(fragment_path(host), job_bytes(job))
    if before is None or replace(job, observed_until_ns=before.observed_until_ns) != before:
        rebuild(location)


def is_deleted(location: Location) -> bool:
    """Whether a job.json that was written has gone: somebody deleted the folder meanwhile. Asked of
    local folders only, since in a bucket every flush would cost a request."""
    return location.is_local and not Path(location.url, JOB_FILE).exists()


def rebuild(location: Location) -> None:
    """Writes job.json as the union of all fragments.

    Two hosts may do so at the same time, and the slower one would undo the other's union. So each
    lists the fragments again after writing, and the last writer has seen all of them. If fragments
    keep changing, it stops after a few rounds: readers merge fragments anyway.
    """
    fragments: dict[Entry, Job | None] = {}
    listed: list[Entry] | None = None
    for _ in range(_ROUNDS):
        now = location.files(TOPOLOGY)
        if now == listed:
            return
        listed = now
        new = [entry for entry in listed if entry not in fragments]
        with ThreadPoolExecutor(_THREADS) as pool:
            read = list(pool.map(lambda entry: _fragment(location, entry), new))
        fragments = {**fragments, **dict(zip(new, read, strict=True))}
        fragments = {entry: fragments[entry] for entry in listed}
        known = [job for job in fragments.values() if job is not None]
        if known:
            location.put(JOB_FILE, job_bytes(merge_jobs(known)))


def _fragment(location: Location, entry: Entry) -> Job | None:
    data = location.get(entry.path)
    try:
        return None if data is None else parse_job(data)
    except FormatError:
        return None


def job_bytes(job: Job) -> bytes:
    return (json.dumps(job.to_json(), indent=1) + "\n").encode()
