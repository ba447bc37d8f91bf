"""`stepscope counters`: counters of this host's GPUs, thousands of times a second, from now on for
a while."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.cli import exits
from stepscope.cli.asking import asked
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
"""The processor gives up a window before that."""


def register(app: typer.Typer) -> None:
    app.command("counters")(counters)


def counters(
    hz: Annotated[
        float,
        typer.Option(metavar="HZ", min=1, max=MOST_COUNTERS_HZ, help="How often."),
    ] = MOST_COUNTERS_HZ,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=MOST_COUNTERS_SECONDS, help="For how long.")
    ] = COUNTERS_SECONDS,
    socket: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Where the processor listens [default: one per user]."),
    ] = None,
) -> int:
    """Sample counters of the units of this host's GPUs for a while, for all jobs recorded here.

    The processor does it, by CUPTI, and needs privilege: `stepscope doctor` says which. Waits for
    the end and says what came of it.
    """
    from stepscope.processor.settings import default_socket

    counted = asked_of(socket or default_socket(), hz, seconds)
    if not counted.samples:
        raise StoreError("; ".join(counted.troubles) or "counters: no samples came")
    for trouble in counted.troubles:
        exits.complain(trouble)
    typer.echo(f"{counted.samples} samples, {counted.lost} more were lost")
    return 0


def why_not(machine: Machine) -> str | None:
    """Why none would be sampled on a machine, as it looks from outside, and what to do."""
    from stepscope.doctor import gpu
    from stepscope.doctor.finding import State

    found = gpu.counters(machine)
    if found.state is State.WORKS:
        return None
    return found.found if found.advice is None else f"{found.found}; {found.advice}"


def this_machine() -> Machine:
    """With the packages of our Python, where the processor looks, too."""
    from stepscope.doctor.machine import Machine

    return Machine(packages=Path(sysconfig.get_path("purelib")), store=None)


def asked_of(path: Path, hz: float, seconds: float) -> Counted:
    """What came of it.

    Raises:
        StoreError: there is no processor, or it did not answer.
    """
    try:
        return decode_counted(asked(path, encode_counters(hz, seconds), seconds + _GRACE_SECONDS))
    except (OSError, WireError) as error:
        raise StoreError(f"no answer of a processor on {path}: {error}; try --socket") from error
