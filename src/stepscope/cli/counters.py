"""`stepscope counters`: samples GPU hardware counters on this host thousands of times a second."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.cli import exits
from stepscope.cli.request import request
from stepscope.errors import StoreError, WireError
from stepscope.processor.settings import COUNTERS_SECONDS
from stepscope.wire.control import (
    MOST_COUNTERS_HZ,
    MOST_COUNTERS_SECONDS,
    Counted,
    decode_counted,
    encode_counters,
)

if TYPE_CHECKING:
    from stepscope.doctor.machine import Machine

_GRACE_SECONDS = 90.0
"""Added to the timeout: the processor itself gives up on a sampling window earlier."""


def register(app: typer.Typer) -> None:
    app.command("counters")(counters)


def counters(
    hz: Annotated[
        float,
        typer.Option(metavar="HZ", min=1, max=MOST_COUNTERS_HZ, help="Sampling rate."),
    ] = MOST_COUNTERS_HZ,
    seconds: Annotated[
        float,
        typer.Option(min=0.1, max=MOST_COUNTERS_SECONDS, help="Length of the sampling window."),
    ] = COUNTERS_SECONDS,
    socket: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The processor's socket [default: one per user]."),
    ] = None,
) -> int:
    """Sample hardware counters of this host's GPUs for a while, for all jobs recorded on it.

    The processor samples them with CUPTI, which needs a privilege; `stepscope doctor` shows which.
    The command waits until the window ends and prints the number of samples.
    """
    from stepscope.processor.settings import default_socket

    counted = request_counters(socket or default_socket(), hz, seconds)
    if not counted.samples:
        raise StoreError("; ".join(counted.troubles) or "counters: no samples arrived")
    for trouble in counted.troubles:
        exits.print_stderr(trouble)
    typer.echo(f"{counted.samples} samples, {counted.lost} lost")
    return 0


def why_not(machine: Machine) -> str | None:
    """Why counters cannot be sampled on a machine and what to do; None if nothing prevents it."""
    from stepscope.doctor import gpu
    from stepscope.doctor.finding import State

    found = gpu.counters(machine)
    if found.state is State.WORKS:
        return None
    return found.found if found.advice is None else f"{found.found}; {found.advice}"


def this_machine() -> Machine:
    """This host, with the packages of our own Python: the processor uses the same ones."""
    from stepscope.doctor.machine import Machine

    return Machine(packages=Path(sysconfig.get_path("purelib")), store=None)


def request_counters(path: Path, hz: float, seconds: float) -> Counted:
    """Has the processor sample counters; returns how many samples it stored.

    Raises:
        StoreError: there is no processor, or it did not answer.
    """
    try:
        answer = request(path, encode_counters(hz, seconds), seconds + _GRACE_SECONDS)
        return decode_counted(answer)
    except (OSError, WireError) as error:
        raise StoreError(f"no answer from a processor on {path}: {error}; try --socket") from error
