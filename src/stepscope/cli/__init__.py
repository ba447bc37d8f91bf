"""The `stepscope` command line.

A command is one module with `register(app)`, listed in `COMMANDS`: it parses, calls one library
function, renders, and returns its exit status. Modules are imported at start-up for the help page,
so they import anything heavy inside the command. What every command shares is in
`exits` (exit statuses, errors as one line) and `terminal` (colour, width, encoding, progress).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Annotated

import typer

import stepscope
from stepscope.cli import (
    compact,
    counters,
    diagnose,
    doctor,
    evaluate,
    exits,
    import_,
    logs,
    prepare,
    processor,
    run,
    simulate,
    trace,
    watch,
)

COMMANDS: tuple[ModuleType, ...] = (
    run, diagnose, doctor, trace, import_, simulate, evaluate, compact, prepare, processor,
    watch, counters,
)  # fmt: skip
"""In the order of the help page."""


def main(args: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status and never raises what a user would see."""
    return exits.guarded(lambda: _invoke(build_app(), args))


def build_app() -> typer.Typer:
    app = typer.Typer(
        name="stepscope",
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_stepscope)
    for command in COMMANDS:
        command.register(app)
    return app


def _invoke(app: Callable[..., object], args: Sequence[str] | None) -> int:
    """Commands return their exit status; those that return nothing went well."""
    status = app(args, prog_name="stepscope", standalone_mode=False)
    return status if isinstance(status, int) else exits.NOTHING_FOUND


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stepscope {stepscope.__version__}")
        raise typer.Exit


def _stepscope(
    context: typer.Context,
    verbose: Annotated[
        int,
        typer.Option("--verbose", "-v", count=True, help="Say what is done; twice: in detail."),
    ] = 0,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Names the rank, device or code that makes distributed training slow or stuck.

    Start a job under stepscope, then ask about it, while it runs or afterwards:

    - `stepscope run -- torchrun --nproc-per-node 8 train.py`

    - `stepscope diagnose stepscope-runs/JOB`

    - `stepscope diagnose s3://bucket/runs/JOB --json`

    Or, with nothing installed on the cluster, about what PyTorch's profiler or Flight Recorder
    wrote:

    - `stepscope diagnose traces/`

    Exit status: 0 nothing found, 1 something found, 2 the source cannot be read or the command
    makes no sense, 3 a fault of stepscope itself.
    """
    logs.configure(verbose)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
