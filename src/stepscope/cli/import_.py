"""`stepscope import`: converts traces or Flight Recorder dumps to a job folder."""

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
"""Recorder name in the job folder, where a processor would use its host name."""

_EXAMPLES = """Examples:

- `stepscope import traces/ --store stepscope-runs`: write `stepscope-runs/traces`

- `stepscope import dumps/ --store s3://bucket/runs --job llama-70b-hang`: write into a bucket
"""


def register(app: typer.Typer) -> None:
    app.command("import", epilog=_EXAMPLES)(import_)


def import_(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER",
            help="PyTorch profiler traces, Flight Recorder dumps, or Perfetto traces that "
            "stepscope wrote, of one job.",
        ),
    ],
    store: Annotated[
        str,
        typer.Option(
            metavar="FOLDER_OR_URL", help="Where to create the job folder: a folder or s3://…."
        ),
    ] = "stepscope-runs",
    job: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the job [default: name of FOLDER].")
    ] = "",
) -> int:
    """Convert recordings of PyTorch's own tools to a job folder of Parquet files.

    Exit status: 0 written, 2 FOLDER cannot be read or the store cannot be written.
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
    exits.print_stderr(f"wrote {location}; next: `stepscope diagnose {location}`")
    return exits.NOTHING_FOUND


def _check_store(store: str) -> None:
    """Fails before minutes of reading instead of after them; buckets are checked on writing."""
    if "://" in store:
        return
    path = Path(os.path.expanduser(store)).absolute()  # noqa: PTH111  accepts an unknown `~user`
    existing = next(filter(os.path.exists, (path, *path.parents)), path)
    if not existing.is_dir():
        raise UsageError(f"cannot write to {store}: {existing} is a file; name another --store")
    if not os.access(existing, os.W_OK):
        raise UsageError(f"cannot write to {store}: {existing}: permission denied")


def _recording(folder: str) -> Recording:
    """Reads the traces or dumps in a folder.

    Raises:
        SourceError: the folder holds neither, or cannot be read.
    """
    from stepscope.cli.sources import holds_jobs, read_recording

    recording = read_recording(folder)
    if recording is not None:
        return recording
    if "://" not in folder and holds_jobs(Path(folder)):
        raise SourceError(f"{folder} is already a job folder, or a store of job folders")
    raise SourceError(
        f"{folder} contains no PyTorch profiler traces, no Flight Recorder dumps and no Perfetto "
        "traces of stepscope"
    )


def _write(window: Window, location: Location) -> None:
    """Writes a new job folder.

    Raises:
        UsageError: the folder exists already.
        StoreError: the folder cannot be written.
    """
    from stepscope.cli.writing import write_window

    if any(location.top()):
        raise UsageError(f"{location} already exists; choose another name with --job")
    write_window(window, location, _RECORDER)
