"""`stepscope baseline`: learns what a healthy job's functions do, for `diagnose --expected`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.cli import exits
from stepscope.cli.output import check_writable, write_text
from stepscope.errors import SourceError, UsageError

if TYPE_CHECKING:
    from stepscope.diagnose.expected import Expected

_EXAMPLES = """Examples:

- `stepscope baseline runs/good-1 runs/good-2 --out expected.json`: what two healthy jobs show

- `stepscope diagnose runs/new --expected expected.json`: judge another job by it
"""

LARGEST_BYTES = 16 << 20
"""A baseline of ten thousand functions has three megabytes."""

Sources = Annotated[
    list[str],
    typer.Argument(metavar="JOB…", help="Folders or URLs of healthy jobs that profiled steps."),
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Where to write it; without, it is printed."),
]
Anyway = Annotated[
    bool,
    typer.Option("--anyway", help="Learn also from jobs in which stepscope finds a culprit."),
]


def register(app: typer.Typer) -> None:
    app.command("baseline", epilog=_EXAMPLES)(baseline)


def baseline(sources: Sources, out: Out = None, anyway: Anyway = False) -> int:
    """Learn what functions do in your healthy jobs, to judge other jobs by it.

    It reads the windows of profiling (`stepscope profile`) of each job, and writes a range for each
    function: its share of the step, its use of the processor, device or network, and its time per
    step. Jobs in which stepscope finds a culprit are left out. Five windows are enough.

    Exit status: 0 written, 2 nothing could be learned.
    """
    from stepscope.diagnose.expected import ENOUGH_WINDOWS, to_json

    check_writable(out)
    expected = _learned(sources, anyway)
    text = json.dumps(to_json(expected), indent=1) + "\n"
    if out is None:
        print(text, end="")
    else:
        write_text(text, out)
    place = "" if out is None else f"wrote {out}: "
    exits.print_stderr(
        f"{place}{len(expected.functions)} functions in {expected.windows} windows of "
        f"{expected.jobs} jobs"
    )
    if expected.windows < ENOUGH_WINDOWS:
        exits.print_stderr(
            f"ranges of so few windows are wide: learn from {ENOUGH_WINDOWS} windows or more"
        )
    return exits.NOTHING_FOUND


def _learned(sources: list[str], anyway: bool) -> Expected:
    from stepscope.cli.sources import open_source
    from stepscope.diagnose.overview.learned import Learning
    from stepscope.diagnose.run import diagnose

    learning = Learning()
    for source in sources:
        window = open_source(source).read()
        if window.table("patterns") is None:
            exits.print_stderr(f"{source}: left out, nobody profiled steps of it")
            continue
        accused = () if anyway else diagnose(window).accused
        if accused:
            exits.print_stderr(f"{source}: left out, it is not healthy: {accused[0].summary}")
            continue
        learning.add(window)
    if not learning.windows:
        raise SourceError(
            "nothing was learned: no healthy job with profiled steps; record some with "
            "`stepscope profile JOB`"
        )
    return learning.expected


def read_expected(path: Path) -> Expected:
    """The baseline in a file.

    Raises:
        UsageError: it cannot be read, or is no baseline.
    """
    from stepscope.diagnose.expected import InvalidBaselineError, from_json

    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read the baseline {path}: {error.strerror}") from error
    if len(data) > LARGEST_BYTES:
        raise UsageError(f"{path} is no baseline: it is larger than {LARGEST_BYTES >> 20} MB")
    try:
        return from_json(json.loads(data))
    except (InvalidBaselineError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is no baseline: {error}; write one with `stepscope baseline JOB --out FILE`"
        ) from error
