"""`stepscope watch`: changes which events NCCL's profiler plugin records in a running job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli.request import request
from stepscope.errors import StoreError, UsageError, WireError
from stepscope.wire.control import AS_USUAL, decode_relayed, encode_events

EVENTS = {"collectives": 2, "point-to-point": 4, "proxies": 8 + 16, "kernels": 64}
"""Bits of NCCL's activation mask; `proxies` are the proxy operations and their proxy steps."""
_NOTHING, _USUAL = "nothing", "as-usual"
_SECONDS = 10.0
"""The processor answers at once unless it is busy."""


def register(app: typer.Typer) -> None:
    app.command("watch")(watch)


def watch(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")],
    events: Annotated[
        str,
        typer.Argument(
            metavar="EVENTS",
            help="A comma-separated list of collectives, point-to-point, proxies and kernels; or "
            "nothing; or as-usual for the default.",
        ),
    ],
    socket: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The processor's socket [default: one per user]."),
    ] = None,
) -> int:
    """Change which NCCL events the ranks of a job on this host record.

    For jobs that were started with `stepscope run --native nccl`. The choice holds until the next
    `stepscope watch` or the end of the job.
    """
    from stepscope.processor.settings import default_socket
    from stepscope.report.units import count

    reached = request_events(socket or default_socket(), job, mask(events))
    if reached == 0:
        raise UsageError(f"no rank of {job} on this host was started with --native nccl")
    typer.echo(f"{count(reached, 'rank')} of {job} set to record {events}")
    return 0


def mask(events: str) -> int:
    """The activation mask for a list of events, or AS_USUAL.

    Raises:
        UsageError: the list contains an unknown event.
    """
    if events in (_NOTHING, _USUAL):
        return 0 if events == _NOTHING else AS_USUAL
    words = events.split(",")
    for word in words:
        if word not in EVENTS:
            known = ", ".join((*EVENTS, _NOTHING, _USUAL))
            raise UsageError(f"unknown NCCL events {word!r}; known: {known}")
    return sum({EVENTS[word] for word in words})


def request_events(path: Path, job: str, events: int) -> int:
    """Has the processor pass the mask on; returns how many ranks it reached.

    Raises:
        StoreError: there is no processor, or it did not answer.
    """
    try:
        return decode_relayed(request(path, encode_events(job, events), _SECONDS))
    except (OSError, WireError) as error:
        raise StoreError(f"no answer from a processor on {path}: {error}; try --socket") from error
