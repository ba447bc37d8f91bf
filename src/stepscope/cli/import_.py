"""`stepscope import`: profiler traces or Flight Recorder dumps as a job folder."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.cli import exits
from stepscope.errors import SourceError, UsageError

if TYPE_CHECKING:
    from stepscope.cli.sources import Recording
    from stepscope.store.location import Location
    from stepscope.window import Window

logger = logging.getLogger(__name__)

_RECORDER = "import"
"""In place of the host whose processor wrote a folder."""

_EXAMPLES = """Examples:

- `stepscope import traces/ --store stepscope-runs`: writes `stepscope-runs/traces`

- `stepscope import dumps/ --store s3://bucket/runs --job llama-70b-hang`: into a bucket
"""


def register(app: typer.Typer) -> None:
    app.command("import", epilog=_EXAMPLES)(import_)


def import_(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER", help="PyTorch profiler traces, or Flight Recorder dumps, of one job."
        ),
    ],
    store: Annotated[
        str, typer.Option(metavar="FOLDER_OR_URL", help="Where job folders lie: a folder, s3://….")
    ] = "stepscope-runs",
    job: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the job; FOLDER's own name unless given.")
    ] = "",
) -> int:
    """Write what PyTorch's own tools recorded as a job folder: Parquet that anything can query.

    Exit status: 0 written, 2 FOLDER cannot be read or the store not be written.
    """
    from stepscope.cli.terminal import progress
    from stepscope.store.layout import job_location

    _check_store(store)
    recording = _recording(folder)
    for problem in recording.problems:
        logger.warning("%s", " ".join(problem.split()))
    window = recording.window
    if job:
        window = replace(window, job=replace(window.job, job_id=job))
    location = job_location(store, window.job.job_id)
    with progress(f"writing {location}"):
        _write(window, location)
    exits.complain(f"wrote {location}; `stepscope diagnose {location}`")
    return exits.NOTHING_FOUND


def _check_store(store: str) -> None:
    """Says so before minutes of reading rather than after; buckets are asked later."""
    if "://" in store:
        return
    path = Path(os.path.expanduser(store)).absolute()  # noqa: PTH111  takes a `~` of nobody
    there = next(filter(os.path.exists, (path, *path.parents)), path)
    if not there.is_dir():
        raise UsageError(f"cannot write to {store}: {there} is a file; name another --store")
    if not os.access(there, os.W_OK):
        raise UsageError(f"cannot write to {store}: {there} may not be written to")


def _recording(folder: str) -> Recording:
    """What PyTorch wrote.

    Raises:
        SourceError: it is something else, or cannot be read.
    """
    from stepscope.cli.sources import holds_jobs, read_recording

    recording = read_recording(folder)
    if recording is not None:
        return recording
    if "://" not in folder and holds_jobs(Path(folder)):
        raise SourceError(f"{folder} is a job folder already, or a store of them")
    raise SourceError(f"{folder} holds neither PyTorch profiler traces nor Flight Recorder dumps")


def _write(window: Window, location: Location) -> None:
    """A folder that was not there before.

    Raises:
        UsageError: it was.
        StoreError: it cannot be written.
    """
    from stepscope.cli.writing import write_window

    if any(location.top()):
        raise UsageError(f"{location} is there already; choose another name with --job")
    write_window(window, location, _RECORDER)
