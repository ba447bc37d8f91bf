"""`stepscope run`: starts a training command and monitors it until it exits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
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


def register(app: typer.Typer) -> None:
    app.command(
        "run",
        epilog=_EXAMPLES,
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    )(run)


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND…", help="The command that starts training.")
    ],
    store: Annotated[
        str,
        typer.Option(
            metavar="FOLDER_OR_URL", help="Where to create the job folder: a folder or s3://…."
        ),
    ] = "stepscope-runs",
    job: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The job's name [default: the script's, with job id or time]."
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the final report as an HTML page."),
    ] = None,
    socket: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The processor's socket [default: one per user]."),
    ] = None,
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
    from stepscope.cli.live import Live
    from stepscope.cli.notifications import Notifications
    from stepscope.cli.prepare import prepare_for
    from stepscope.cli.series import announcer_to
    from stepscope.cli.unrecorded import why_unrecorded
    from stepscope.processor.settings import Settings, default_socket

    libraries = variables(native)
    if topology is not None:
        read_tree(topology)  # a wrong file is reported before the job instead of after it
    if counters is not None:
        _warn_if_no_counters()
    name = job or launch.job_name(command, os.environ)
    root = launch.absolute_store(store)
    settings = Settings(
        sample_stacks=stacks, traces=traces, keep_kernels=kernels,
        keep_hours=keep_hours, keep_gb=keep_gb, remote_write=remote_write,
        counters_hz=counters, counters_seconds=counters_seconds,
        profile=profile is Profile.AUTO, profile_gb=profile_gb,
    )  # fmt: skip
    processor = launch.HostProcessor(socket or default_socket(), settings.options())
    announcer = announcer_to(remote_write)
    hidden = why_unrecorded(command)
    if hidden is not None:
        exits.print_stderr(hidden)
    prepare_for(command, os.environ)
    processor.ensure()
    env = launch.environment(os.environ, name, root, processor.path) | libraries
    notifications = Notifications(processor.path, name)
    live = Live(root, name, lambda: _ask_for_stacks(processor, name), announcer, notifications,
                topology)  # fmt: skip
    status = _monitor(command, env, live, processor, lambda: _note_deaths(processor, root, name))
    notes = _try_flush(processor, name, finish=True)
    _note_deaths(processor, root, name)
    live.report(html)
    for note in notes:
        exits.print_stderr(note)
    if announcer is not None:
        announcer.close()
    return status if status >= 0 else 128 - status


def _warn_if_no_counters() -> None:
    """Warns at once; the processor would only log it, and minutes later."""
    from stepscope.cli.counters import this_machine, why_not

    trouble = why_not(this_machine())
    if trouble is not None:
        exits.print_stderr(f"counters will probably not be sampled: {trouble}")


def _monitor(
    command: list[str], env: dict[str, str], live: Live, processor: HostProcessor,
    note_deaths: Callable[[], None],
) -> int:  # fmt: skip
    """Monitors the command until it exits; returns its exit status."""
    process = _start(command, env, live.output)
    _forward_signals(process)
    try:
        while not live.wait(process):
            processor.keep()
            note_deaths()
    finally:
        live.stop()
    processor.exited(process.pid, process.returncode)
    return process.returncode


def _note_deaths(processor: HostProcessor, root: str, job: str) -> None:
    """Says, and writes down in the job folder, which processor died and when."""
    from stepscope.cli import deaths

    for death in processor.deaths():
        exits.print_stderr(f"{death}: what ranks did in the seconds before may be missing")
        deaths.note(death, root, job)


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
