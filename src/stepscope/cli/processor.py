"""`stepscope processor`: the one process per host that writes job folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli.compact import KeepGb, KeepHours
from stepscope.processor.settings import COUNTERS_SECONDS
from stepscope.wire.control import MOST_COUNTERS_HZ, MOST_COUNTERS_SECONDS

RemoteWrite = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Send series for dashboards there, by Prometheus Remote Write."
    ),
]
Stacks = Annotated[
    bool, typer.Option("--stacks/--no-stacks", help="Sample call stacks with py-spy.")
]
Traces = Annotated[
    bool, typer.Option("--traces/--no-traces", help="Draw what the ranks do, for Perfetto.")
]
Kernels = Annotated[
    bool, typer.Option("--kernels/--no-kernels", help="Store every kernel, not summaries alone.")
]

Counters = Annotated[
    float | None,
    typer.Option(
        "--counters", metavar="HZ", min=1, max=MOST_COUNTERS_HZ,
        help="Sample counters of the GPUs' units so often for a while, by CUPTI: needs privilege.",
    ),
]  # fmt: skip
CountersSeconds = Annotated[
    float,
    typer.Option(min=0.1, max=MOST_COUNTERS_SECONDS, help="How long --counters does so at a time."),
]


def register(app: typer.Typer) -> None:
    app.command("processor")(processor)


def processor(
    socket: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Where producers connect [default: one per user]."),
    ] = None,
    exit_when_idle: Annotated[
        bool, typer.Option("--exit-when-idle", help="Stop 20 s after the last producer left.")
    ] = False,
    stacks: Stacks = True,
    flush_seconds: Annotated[
        float, typer.Option(min=0.1, max=60, help="How often rows reach a local job folder.")
    ] = 4.0,
    traces: Traces = True,
    kernels: Kernels = False,
    keep_hours: KeepHours = None,
    keep_gb: KeepGb = None,
    remote_write: RemoteWrite = None,
    counters: Counters = None,
    counters_seconds: CountersSeconds = COUNTERS_SECONDS,
) -> int:
    """Serve the ranks of this host: take their records, sample them from outside, store both.

    `stepscope run` starts one by itself where none runs. Start it yourself to keep one for all your
    jobs on a host.
    """
    from stepscope.processor.daemon import serve
    from stepscope.processor.settings import Settings, default_socket

    serve(
        Settings(
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
        )
    )
    return 0
