"""`stepscope watch`: what NCCL's profiler plugin watches, from now on, in a job that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli.asking import asked
from stepscope.errors import StoreError, UsageError, WireError
from stepscope.wire.control import AS_USUAL, decode_relayed, encode_events

EVENTS = {"collectives": 2, "point-to-point": 4, "proxies": 8 + 16, "kernels": 64}
"""Bits of NCCL's activation mask; proxies are those of operators and their steps."""
_NOTHING, _USUAL = "nothing", "as-usual"
_SECONDS = 10.0
"""The processor answers at once; it may be held up by other work."""


def register(app: typer.Typer) -> None:
    app.command("watch")(watch)


def watch(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")],
    events: Annotated[
        str,
        typer.Argument(
            metavar="EVENTS",
            help="Some of collectives, point-to-point, proxies and kernels, with commas between; "
            "nothing; or as-usual.",
        ),
    ],
    socket: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Where the processor listens [default: one per user]."),
    ] = None,
) -> int:
    """Have the ranks of a job on this host watch other events of NCCL's.

    For jobs that were started with `stepscope run --native nccl`. It holds until the next such
    command, or the job's end.
    """
    from stepscope.processor.settings import default_socket

    told = asked_of(socket or default_socket(), job, mask(events))
    if told == 0:
        raise UsageError(f"no rank of {job} on this host was started with --native nccl")
    typer.echo(f"{told} rank{'s' if told > 1 else ''} of {job} watch {events}")
    return 0


def mask(events: str) -> int:
    """What the words say, as bits, or AS_USUAL.

    Raises:
        UsageError: one of them is no event.
    """
    if events in (_NOTHING, _USUAL):
        return 0 if events == _NOTHING else AS_USUAL
    words = events.split(",")
    for word in words:
        if word not in EVENTS:
            known = ", ".join((*EVENTS, _NOTHING, _USUAL))
            raise UsageError(f"NCCL has no events called {word!r}; there are {known}")
    return sum({EVENTS[word] for word in words})


def asked_of(path: Path, job: str, events: int) -> int:
    """How many ranks a processor told.

    Raises:
        StoreError: there is none, or it did not answer.
    """
    try:
        return decode_relayed(asked(path, encode_events(job, events), _SECONDS))
    except (OSError, WireError) as error:
        raise StoreError(f"no answer of a processor on {path}: {error}; try --socket") from error
