"""`stepscope run`: starts a training command and monitors it until it exits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.cli import exits
from stepscope.cli.compact import KeepGb, KeepHours
from stepscope.cli.native import Native, variables
from stepscope.cli.processor import (
    Counters,
    CountersSeconds,
    Kernels,
    Profile,
    ProfileGb,
    ProfileWhen,
    RemoteWrite,
    Stacks,
    Traces,
)
from stepscope.cli.topology import Topology, read_tree
from stepscope.errors import StepscopeError, UsageError
from stepscope.processor.settings import COUNTERS_SECONDS, PROFILE_GB

if TYPE_CHECKING:
    from stepscope.cli.launch import HostProcessor
    from stepscope.cli.live import Live

_EXAMPLES = """Examples:

- `stepscope run -- torchrun --nproc-per-node 8 train.py --lr 3e-4`

- `stepscope run --store s3://bucket/runs --job llama-0412 -- mpirun -n 8 python train.py`

- `stepscope run --html report.html -- python train.py`

On several hosts run the same line on each, with the same --store and --job: each host needs its own
`stepscope run`, for example
`srun --ntasks-per-node=1 stepscope run --store /shared/runs -- torchrun … train.py`.
"""


Command = Annotated[
    list[str], typer.Argument(metavar="-- COMMAND…", help="The command that starts training.")
]
Store = Annotated[
    str,
    typer.Option(
        metavar="FOLDER_OR_URL", help="Where to create the job folder: a folder or s3://…."
    ),
]
JobName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The job's name [default: the script's, with job id or time]."
    ),
]
Html = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also write the final report as an HTML page.")
]
Socket = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="The processor's socket [default: one per user]."),
]


def register(app: typer.Typer) -> None:
    app.command(
        "run",
        epilog=_EXAMPLES,
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    )(run)


def run(
    command: Command,
    store: Store = "stepscope-runs",
    job: JobName = None,
    html: Html = None,
    socket: Socket = None,
    stacks: Stacks = True,
    traces: Traces = True,
    kernels: Kernels = False,
    keep_hours: KeepHours = None,
    keep_gb: KeepGb = None,
    remote_write: RemoteWrite = None,
    topology: Topology = None,
    native: Native = None,
    counters: Counters = None,
    counters_seconds: CountersSeconds = COUNTERS_SECONDS,
    profile: ProfileWhen = Profile.AUTO,
    profile_gb: ProfileGb = PROFILE_GB,
) -> int:
    """Run a training command, unchanged, and report what makes it slow while it runs.

    Works with any launcher. The exit status is that of the command. stepscope prints to standard
    error only, so the command's output stays unchanged.
    """
    from stepscope.cli import launch
    from stepscope.cli.same_name import why_mixed
    from stepscope.cli.unrecorded import why_unrecorded
    from stepscope.processor.settings import Settings, default_socket

    libraries = variables(native)
    if topology is not None:
        read_tree(topology)  # a wrong file is reported before the job instead of after it
    if counters is not None:
        _warn_if_no_counters()
    settings = Settings(
        sample_stacks=stacks, traces=traces, keep_kernels=kernels,
        keep_hours=keep_hours, keep_gb=keep_gb, remote_write=remote_write,
        counters_hz=counters, counters_seconds=counters_seconds,
        profile=profile is Profile.AUTO, profile_gb=profile_gb,
    )  # fmt: skip
    started = _Job(
        command, job or launch.job_name(command, os.environ), launch.absolute_store(store),
        launch.HostProcessor(socket or default_socket(), settings.options()), libraries,
    )  # fmt: skip
    for trouble in (why_unrecorded(command), why_mixed(started.root, started.name)):
        if trouble is not None:
            exits.print_stderr(trouble)
    status = _observed(started, remote_write, topology, html)
    return status if status >= 0 else 128 - status


@dataclass(frozen=True)
class _Job:
    """What is started: the command, the job's name, its store, and the host's processor."""

    command: list[str]
    name: str
    root: str
    processor: HostProcessor
    libraries: Mapping[str, str]
    """Environment variables that load our native libraries."""


def _observed(job: _Job, remote_write: str | None, topology: Path | None, html: Path | None) -> int:
    """Runs the command, reports what makes it slow, and returns its exit status."""
    from stepscope.cli import launch
    from stepscope.cli.live import Live
    from stepscope.cli.notifications import Notifications
    from stepscope.cli.prepare import prepare_for
    from stepscope.cli.series import announcer_to

    announcer = announcer_to(remote_write)
    prepare_for(job.command, os.environ)
    job.processor.ensure()
    live = Live(job.root, job.name, lambda: _ask_for_stacks(job.processor, job.name), announcer,
                Notifications(job.processor.path, job.name), topology)  # fmt: skip
    env = launch.environment(os.environ, job.name, job.root, job.processor.path)
    status = _monitor(job, {**env, **job.libraries}, live)
    notes = _try_flush(job.processor, job.name, finish=True)
    _note_deaths(job)
    live.report(html, notes)
    if announcer is not None:
        announcer.close()
    return status


def _warn_if_no_counters() -> None:
    """Warns at once; the processor would only log it, and minutes later."""
    from stepscope.cli.counters import this_machine, why_not

    trouble = why_not(this_machine())
    if trouble is not None:
        exits.print_stderr(f"counters will probably not be sampled: {trouble}")


def _monitor(job: _Job, env: dict[str, str], live: Live) -> int:
    """Monitors the command until it exits; returns its exit status."""
    process = _start(job.command, env, live.output)
    _forward_signals(process)
    try:
        while not live.wait(process):
            job.processor.keep()
            _note_deaths(job)
    finally:
        live.stop()
    job.processor.exited(process.pid, process.returncode)
    return process.returncode


def _note_deaths(job: _Job) -> None:
    """Says, and writes down in the job folder, which processor died and when."""
    from stepscope.cli import deaths

    for death in job.processor.deaths():
        exits.print_stderr(f"{death}: what ranks did in the seconds before may be missing")
        deaths.note(death, job.root, job.name)


def _try_flush(processor: HostProcessor, job: str, *, finish: bool = False) -> tuple[str, ...]:
    """Returns what the recording lacks: the report covers what was stored."""
    try:
        return processor.flush(job, finish=finish)
    except StepscopeError as error:
        return (str(error),)


def _ask_for_stacks(processor: HostProcessor, job: str) -> None:
    """Has pending samples stored; a failure is reported at the end."""
    _try_flush(processor, job)


def _start(command: list[str], env: dict[str, str], output: int | None) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, env=env, stdout=output, stderr=output)
    except OSError as error:
        raise UsageError(f"cannot start {command[0]}: {error.strerror}") from error


def _forward_signals(process: subprocess.Popen[bytes]) -> None:
    """Ignores SIGINT, which the terminal sends to the command too; passes SIGTERM and SIGHUP on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: process.send_signal(received))
    sys.stdout.flush()
