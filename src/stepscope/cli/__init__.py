"""The `stepscope` command line.

Each command is one module with `register(app)`, listed in `COMMANDS`. It parses its arguments,
calls one library function, renders the result and returns the exit status. All command modules are
imported at start-up for the help page, so heavy imports belong inside the command function. Shared
code is in `exits` (exit statuses, one-line errors) and `terminal` (colour, width, encoding,
progress).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Annotated

import typer

import stepscope
from stepscope.cli import (
    baseline,
    compact,
    counters,
    devices,
    diagnose,
    doctor,
    evaluate,
    exits,
    import_,
    logs,
    methods,
    prepare,
    processor,
    profile,
    run,
    simulate,
    trace,
    watch,
)

COMMANDS: tuple[ModuleType, ...] = (
    run, diagnose, devices, baseline, methods, doctor, trace, import_, simulate, evaluate, compact,
    prepare, processor, watch, counters, profile,
)  # fmt: skip
"""In the order in which the help page lists them."""


def main(args: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status; every exception becomes a one-line message."""
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
    """A command that returns None instead of an exit status has succeeded."""
    given = diagnose.with_rank(list(sys.argv[1:] if args is None else args))
    given = evaluate.with_names(given)
    status = app(given, prog_name="stepscope", standalone_mode=False)
    return status if isinstance(status, int) else exits.NOTHING_FOUND


def _version(show: bool) -> None:
    if show:
        typer.echo(f"stepscope {stepscope.__version__}")
        raise typer.Exit


def _stepscope(
    context: typer.Context,
    verbose: Annotated[
        int,
        typer.Option("--verbose", "-v", count=True, help="Log progress; -vv logs details."),
    ] = 0,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Finds the rank, device or code that makes distributed training slow or stuck.

    Start a job under stepscope, then diagnose it, while it runs or afterwards:

    - `stepscope run -- torchrun --nproc-per-node 8 train.py`

    - `stepscope diagnose stepscope-runs/JOB`

    - `stepscope diagnose s3://bucket/runs/JOB --json`

    - `stepscope devices stepscope-runs`: devices that are bad in job after job

    Or, with nothing installed on the cluster, diagnose the output of PyTorch's profiler or Flight
    Recorder:

    - `stepscope diagnose traces/`

    Exit status: 0 nobody is accused, 1 somebody or something is, 2 the source cannot be read or the
    command line is invalid, 3 an internal error of stepscope.
    """
    logs.configure(verbose)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
