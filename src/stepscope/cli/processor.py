"""`stepscope processor`: the one process per host that writes job folders."""

from __future__ import annotations

import logging
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli.compact import KeepGb, KeepHours
from stepscope.processor.settings import COUNTERS_SECONDS, PROFILE_GB
from stepscope.wire.control import MOST_COUNTERS_HZ, MOST_COUNTERS_SECONDS

logger = logging.getLogger(__name__)

SUPERSEDED = 4
"""Exit status of a processor with `--exit-when-idle` that is not needed: another one listens."""

RemoteWrite = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Send metrics for dashboards to this URL by Prometheus Remote Write."
    ),
]
Stacks = Annotated[
    bool, typer.Option("--stacks/--no-stacks", help="Sample call stacks with py-spy.")
]
Traces = Annotated[
    bool, typer.Option("--traces/--no-traces", help="Write Perfetto traces of the ranks.")
]
Kernels = Annotated[
    bool,
    typer.Option("--kernels/--no-kernels", help="Store every kernel in addition to summaries."),
]

Counters = Annotated[
    float | None,
    typer.Option(
        "--counters", metavar="HZ", min=1, max=MOST_COUNTERS_HZ,
        help="Sample GPU hardware counters with CUPTI at this rate, from time to time; needs a "
        "privilege.",
    ),
]  # fmt: skip
CountersSeconds = Annotated[
    float,
    typer.Option(min=0.1, max=MOST_COUNTERS_SECONDS, help="Length of each --counters window."),
]


class Profile(str, Enum):
    """When all ranks profile the same steps."""

    AUTO = "auto"
    OFF = "off"


ProfileWhen = Annotated[
    Profile,
    typer.Option(
        "--profile",
        help="Have all ranks profile a few steps when the job becomes slower or stuck (auto), or "
        "only by `stepscope profile` (off).",
    ),
]
ProfileGb = Annotated[
    float,
    typer.Option(min=0, help="Limit of the traces of these profiles, per host and job, in GB."),
]


def register(app: typer.Typer) -> None:
    app.command("processor")(processor)


def processor(
    socket: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="The socket that ranks connect to [default: one per user]."
        ),
    ] = None,
    exit_when_idle: Annotated[
        bool, typer.Option("--exit-when-idle", help="Exit 20 s after the last rank disconnects.")
    ] = False,
    stacks: Stacks = True,
    flush_seconds: Annotated[
        float, typer.Option(min=0.1, max=60, help="How often to write rows to a local job folder.")
    ] = 4.0,
    traces: Traces = True,
    kernels: Kernels = False,
    keep_hours: KeepHours = None,
    keep_gb: KeepGb = None,
    remote_write: RemoteWrite = None,
    counters: Counters = None,
    counters_seconds: CountersSeconds = COUNTERS_SECONDS,
    profile: ProfileWhen = Profile.AUTO,
    profile_gb: ProfileGb = PROFILE_GB,
) -> int:
    """Serve the ranks of this host: receive their records, sample them from outside, store both.

    `stepscope run` starts a processor if none is running. Start one yourself to serve all your jobs
    on a host.
    """
    from stepscope.memory import return_freed_memory

    return_freed_memory()
    from stepscope.processor.daemon import serve
    from stepscope.processor.settings import Settings, default_socket
    from stepscope.processor.sockets.listener import AlreadyRunningError

    settings = Settings(
        socket=socket or default_socket(),
        flush_seconds=flush_seconds,
        exit_when_idle=exit_when_idle,
        sample_stacks=stacks,
        traces=traces,
        keep_kernels=kernels,
        keep_hours=keep_hours,
        keep_gb=keep_gb,
        remote_write=remote_write,
        counters_hz=counters,
        counters_seconds=counters_seconds,
        profile=profile is Profile.AUTO,
        profile_gb=profile_gb,
    )
    try:
        serve(settings)
    except AlreadyRunningError as error:
        if not exit_when_idle:
            raise
        logger.info("%s: this one is not needed", error)
        return SUPERSEDED
    return 0
