"""`stepscope trace`: writes one Perfetto trace of all ranks of a job, on one clock."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.cli import exits
from stepscope.cli.output import check_writable
from stepscope.cli.packed import PackedFile
from stepscope.errors import SourceError, UsageError

if TYPE_CHECKING:
    from stepscope.report.perfetto import Scene
    from stepscope.window import Window

logger = logging.getLogger(__name__)

Span = tuple[int, int]

_ENDING = ".perfetto-trace.gz"

_EXAMPLES = """Examples:

- `stepscope trace stepscope-runs/JOB`: write everything to
  `JOB.perfetto-trace.gz` in the current folder

- `stepscope trace traces/ --out merged.perfetto-trace.gz`: merge the PyTorch
  profiler traces of all ranks

- `stepscope trace JOB/traces`: merge what the processor wrote of each rank and minute

- `stepscope trace stepscope-runs/JOB --focus`: only the ranks and steps that matter

- `stepscope trace s3://bucket/runs/JOB --ranks 0,8-15 --steps 1090-1110`: a part of a long job

To open the file, drag it onto https://ui.perfetto.dev; it does not leave your machine.
"""


def register(app: typer.Typer) -> None:
    app.command("trace", epilog=_EXAMPLES)(trace)


def trace(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER_OR_URL",
            help="A job folder or its URL, PyTorch profiler traces, Flight Recorder dumps, or "
            "Perfetto traces that stepscope wrote.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The file to write, compressed if its name ends in .gz [default: "
            "JOB.perfetto-trace.gz].",
        ),
    ] = None,
    ranks: Annotated[
        str, typer.Option(metavar="RANKS", help="Only these ranks, such as 0,8-15 [default: all].")
    ] = "",
    steps: Annotated[
        str, typer.Option(metavar="STEPS", help="Only these steps, such as 100-120 [default: all].")
    ] = "",
    focus: Annotated[
        bool,
        typer.Option(
            "--focus",
            help="Only what matters: culprits, some peers, ranks on the critical path, and the "
            "worst steps; --ranks and --steps take precedence.",
        ),
    ] = False,
) -> int:
    """Write one Perfetto timeline of all ranks, on one clock.

    It shows steps, phases, communication, kernels, stacks and counters of every rank, and each
    verdict over the time it covers. Exit status: 0 written, 2 nothing to write or cannot write.
    """
    from stepscope.cli.sources import open_window

    requested = parse_spans(ranks, "--ranks", "numbers and ranges, such as 0,8-15")
    span = _one_span(steps)
    check_writable(out or Path(_ENDING))
    window, problems = open_window(source)
    for problem in problems:
        logger.warning("%s", " ".join(problem.split()))
    scene = _scene(source, window, requested, span, focus)
    _write(scene, out or _default_name(window))
    return exits.NOTHING_FOUND


def parse_spans(text: str, option: str, form: str) -> list[Span]:
    """Parses `0,8-15` into pairs of first and last.

    Raises:
        UsageError: the text has another form.
    """
    found: list[Span] = []
    for part in filter(None, text.replace(" ", "").split(",")):
        numbers = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", part)
        first, last = (
            (int(number or numbers[1]) for number in numbers.groups()) if numbers else (1, 0)
        )
        if first > last:
            raise UsageError(f"{option} {part}: write {form}")
        found.append((first, last))
    return found


def _one_span(steps: str) -> Span | None:
    form = "one range of steps, such as 100-120"
    spans = parse_spans(steps, "--steps", form)
    if len(spans) > 1:
        raise UsageError(f"--steps {steps}: write {form}")
    return spans[0] if spans else None


def _scene(
    source: str, window: Window, requested: list[Span], steps: Span | None, narrow: bool
) -> Scene:
    """Selects what to draw, and puts all times on one clock."""
    from stepscope.cli.terminal import progress
    from stepscope.diagnose.overview.focus import focus
    from stepscope.diagnose.prepare.align import align
    from stepscope.diagnose.prepare.clean import clean
    from stepscope.diagnose.prepare.operator_waits import with_operator_waits
    from stepscope.diagnose.run import diagnose
    from stepscope.report.perfetto import Scene, select, span_of

    chosen = _chosen(source, window.ranks, requested)
    with progress(f"diagnosing {source}"):
        diagnosis = diagnose(window)
        window, _, _ = align(clean(window)[0])
        focused = focus(window, diagnosis) if narrow else None
        window = with_operator_waits(window)
    if focused is not None:
        chosen = chosen if requested else focused.ranks
        steps = steps or focused.steps
    part = select(window, chosen, steps)
    if not part.tables:
        raise UsageError(_nothing_to_draw(source, steps, diagnosis.steps))
    return Scene(part, diagnosis, span_of(window, diagnosis.verdicts), chosen)


def _chosen(source: str, ranks: tuple[int, ...], requested: list[Span]) -> tuple[int, ...]:
    from stepscope.report import units

    if not ranks:
        raise SourceError(f"{source} contains no rows of any rank")
    for first, last in requested:
        if not any(first <= rank <= last for rank in ranks):
            missing = f"rank {first}" if first == last else f"ranks {first}-{last}"
            raise UsageError(f"no {missing} in {source}: it contains {units.ranks(ranks)}")
    if not requested:
        return ranks
    return tuple(rank for rank in ranks if any(a <= rank <= b for a, b in requested))


def _nothing_to_draw(source: str, steps: Span | None, recorded: Span | None) -> str:
    from stepscope.report import units

    if steps is None:
        return f"{source} contains nothing to draw for these ranks"
    contained = units.span(recorded) if recorded else "no steps"
    return f"no rows of {units.span(steps)} in {source}: it contains {contained}"


def _default_name(window: Window) -> Path:
    from stepscope.store.layout import safe_name

    path = Path(safe_name(window.job.job_id) + _ENDING)
    check_writable(path)
    return path


def _write(scene: Scene, path: Path) -> None:
    from stepscope.report import units
    from stepscope.report.perfetto import draw

    try:
        with _opened(path) as write, _progress(len(scene.ranks)) as drawn:
            slices = draw(scene, write, drawn)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    size = f", {units.size(path.stat().st_size)}" if path.is_file() else ""
    exits.print_stderr(
        f"wrote {path}: {units.count(len(scene.ranks), 'rank')}, "
        f"{units.count(slices, 'slice')}{size}; to open it, drag it onto https://ui.perfetto.dev"
    )


@contextmanager
def _opened(path: Path) -> Iterator[Callable[[bytes], object]]:
    """Replaces a regular file atomically when it is complete; writes to a pipe directly."""
    is_pipe = path.exists() and not path.is_file()
    part = path if is_pipe else path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("wb") as file:
            if path.name.endswith(".gz"):
                with closing(PackedFile(file)) as packed:
                    yield packed.write
            else:
                yield file.write
        if not is_pipe:
            part.replace(path)
    finally:
        if not is_pipe:
            part.unlink(missing_ok=True)


@contextmanager
def _progress(ranks: int) -> Iterator[Callable[[int], object]]:
    """A progress bar of ranks on stderr, if that is a terminal."""
    from rich import progress as bars
    from rich.console import Console

    console = Console(stderr=True)
    columns = (bars.TextColumn("drawing ranks"), bars.BarColumn(), bars.MofNCompleteColumn(),
               bars.TimeRemainingColumn())  # fmt: skip
    with bars.Progress(*columns, console=console, transient=True,
                       disable=not console.is_terminal) as bar:  # fmt: skip
        task = bar.add_task("", total=ranks)
        yield lambda rank: bar.advance(task)
