"""`stepscope compact`: merges the many small files of a job and, on request, deletes old data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.cli import exits

if TYPE_CHECKING:
    from stepscope.store.retention import Keep

_EXAMPLES = """Examples:

- `stepscope compact stepscope-runs/JOB`: merge the files that the hosts of a job wrote

- `stepscope compact s3://bucket/runs/JOB --keep-hours 72`: also delete data older than three days

- `stepscope compact stepscope-runs/JOB --keep-gb 20`: also delete the oldest data beyond 20 GB
"""
_GB = 10**9
_HOUR_S = 3600.0

KeepHours = Annotated[
    float | None,
    typer.Option(min=0.1, metavar="HOURS", help="Delete rows and traces older than this."),
]
KeepGb = Annotated[
    float | None,
    typer.Option(
        min=0.001, metavar="GB", help="Delete the oldest rows and traces beyond this size."
    ),
]


def register(app: typer.Typer) -> None:
    app.command("compact", epilog=_EXAMPLES)(compact)


def compact(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER_OR_URL", help="A job folder or its URL (s3://…).")
    ],
    keep_hours: KeepHours = None,
    keep_gb: KeepGb = None,
    host: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only files recorded by this host, as its processor does.",
        ),
    ] = None,
    least: Annotated[
        int,
        typer.Option(min=2, metavar="N", help="Merge today's files only if there are at least N."),
    ] = 2,
) -> int:
    """Merge the small files of a job into a few sorted ones; delete the oldest on request.

    Safe at any time: while the job runs, while others read or merge, and if interrupted. Files
    written in the last two minutes may still grow and are left for the next run.

    Exit status: 0 done, or nothing to do; 2 the folder cannot be read or written.
    """
    from stepscope.cli.terminal import progress
    from stepscope.report.units import count
    from stepscope.store.compact import compact as merge
    from stepscope.store.retention import prune
    from stepscope.store.source import open_job

    location = open_job(folder)
    with progress(f"merging files of {location}"):
        dropped = prune(location, keep(keep_hours, keep_gb), host)
        done = merge(location, host, least=least)
    merged = f"merged {count(done.merged, 'file')} into {done.into}"
    actions = [merged if done.into else "nothing to merge"]
    actions += [f"deleted {count(dropped, 'old file')}"] if dropped else []
    actions += [f"removed {count(done.leftovers, 'leftover file')}"] if done.leftovers else []
    exits.print_stderr(f"{location}: {', '.join(actions)}")
    return exits.NOTHING_FOUND


def keep(hours: float | None, gb: float | None) -> Keep:
    """The retention policy that --keep-hours and --keep-gb describe."""
    from stepscope.store.retention import Keep

    return Keep(None if hours is None else hours * _HOUR_S, None if gb is None else int(gb * _GB))
