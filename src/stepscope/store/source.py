"""Finds the job folder of a source, or explains what is there instead."""

from __future__ import annotations

import os
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import SourceError
from stepscope.store.layout import DEVICES, JOB_FILE, TOPOLOGY
from stepscope.store.location import Entry, Location
from stepscope.trace import TABLES

_LISTED = 10


@dataclass(frozen=True)
class _Job:
    name: str
    modified_ns: int


def open_job(source: str) -> Location:
    """The job folder: the source itself, or the only job in it.

    Raises:
        SourceError: nothing is there, or no job, or more than one.
    """
    location = Location.parse(source)
    _check_folder(location)
    folders, files = location.top()
    if is_job(folders, files):
        return location
    if not folders and not files:
        empty = "the folder is empty, and " if location.is_local else ""
        raise SourceError(f"nothing at {location}: {empty}no job was written there; check the name")
    jobs = _jobs_in(location, folders)
    if len(jobs) == 1:
        return location.child(jobs[0].name)
    if jobs:
        raise SourceError(_several(source, jobs))
    found = ", ".join([*(f"{f}/" for f in folders), *(file.path for file in files)][:5])
    raise SourceError(
        f"no job in {location}: expected {JOB_FILE} and tables like steps/*.parquet, found {found}"
    )


def is_job(folders: list[str], files: list[Entry]) -> bool:
    named = {*folders, *(file.path for file in files)}
    return JOB_FILE in named or TOPOLOGY in named or not named.isdisjoint(TABLES)


def _check_folder(location: Location) -> None:
    if not location.is_local:
        return
    folder = Path(location.url)
    # os.path, unlike Path, returns False for a name that is too long
    if not os.path.exists(folder):  # noqa: PTH110
        raise SourceError(
            f"no such folder: {folder}; give a job folder, a store, or s3://bucket/job"
        )
    if not folder.is_dir():
        raise SourceError(f"{folder} is a file; give the job folder that contains it")


def check_store(store: Location) -> None:
    """Raises SourceError if a store cannot be read, is no folder, or is itself a job."""
    _check_folder(store)
    if is_job(*store.top()):
        raise SourceError(f"{store} is a job; name the store that contains it")


def jobs_in(store: Location, known: Container[str] = ()) -> list[str]:
    """The names of the folders of all jobs in a store but those already known, newest first.

    Raises:
        SourceError: it cannot be read.
    """
    folders = [name for name in store.top()[0] if name not in known]
    return [job.name for job in _jobs_in(store, folders)]


def _jobs_in(root: Location, folders: list[str]) -> list[_Job]:
    """The jobs of a store, newest first."""
    jobs = []
    for name in folders:
        if name == DEVICES:
            continue
        inside, files = root.child(name).top()
        if is_job(inside, files):
            newest = max((f.modified_ns for f in files if f.path == JOB_FILE), default=0)
            jobs.append(_Job(name, newest))
    return sorted(jobs, key=lambda job: (-job.modified_ns, job.name))


def _several(source: str, jobs: list[_Job]) -> str:
    names = ", ".join(job.name for job in jobs[:_LISTED])
    more = f" and {len(jobs) - _LISTED} more" if len(jobs) > _LISTED else ""
    first = f"{source.rstrip('/')}/{jobs[0].name}"
    return f"{source} has {len(jobs)} jobs, newest first: {names}{more}; choose one, as in {first}"
