"""`stepscope compact`: many small files of a job become few, and old ones go if asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.cli import exits

if TYPE_CHECKING:
    from stepscope.store.retention import Keep

_EXAMPLES = """Examples:

- `stepscope compact stepscope-runs/JOB`: merges what the hosts of a job wrote

- `stepscope compact s3://bucket/runs/JOB --keep-hours 72`: and drops what is older than three days

- `stepscope compact stepscope-runs/JOB --keep-gb 20`: and the oldest of what is more than 20 GB
"""
_GB = 10**9
_HOUR_S = 3600.0

KeepHours = Annotated[
    float | None,
    typer.Option(min=0.1, metavar="HOURS", help="Drop rows and traces older than that."),
]
KeepGb = Annotated[
    float | None,
    typer.Option(min=0.001, metavar="GB", help="Drop the oldest rows and traces beyond that size."),
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
        typer.Option(metavar="NAME", help="Only what this host recorded, as its processor does."),
    ] = None,
    least: Annotated[
        int, typer.Option(min=2, metavar="N", help="Merge no fewer of today's files than these.")
    ] = 2,
) -> int:
    """Merge the small files of a job into few sorted ones; drop the oldest if asked to.

    Safe at any moment: while the job runs, beside readers and others that merge, and cut off
    anywhere. Files that still grow (of the last two minutes) are left for the next time.

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
    said = [f"{count(done.merged, 'file')} became {done.into}" if done.into else "nothing to merge"]
    said += [f"{count(dropped, 'old file')} dropped"] if dropped else []
    said += [f"{count(done.leftovers, 'leftover')} removed"] if done.leftovers else []
    exits.complain(f"{location}: {', '.join(said)}")
    return exits.NOTHING_FOUND


def keep(hours: float | None, gb: float | None) -> Keep:
    """What the flags ask for."""
    from stepscope.store.retention import Keep

    return Keep(None if hours is None else hours * _HOUR_S, None if gb is None else int(gb * _GB))
