"""`stepscope trace`: all ranks of a job on one clock, as a file that Perfetto opens."""

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
from stepscope.cli.packed import PackedFile
from stepscope.errors import SourceError, UsageError

if TYPE_CHECKING:
    from stepscope.report.perfetto import Scene
    from stepscope.window import Window

logger = logging.getLogger(__name__)

Span = tuple[int, int]

_ENDING = ".perfetto-trace.gz"

_EXAMPLES = """Examples:

- `stepscope trace stepscope-runs/JOB`: everything, as `JOB.perfetto-trace.gz` in this folder

- `stepscope trace traces/ --out merged.perfetto-trace.gz`: PyTorch profiler traces of all ranks

- `stepscope trace stepscope-runs/JOB --focus`: only the ranks and steps that matter

- `stepscope trace s3://bucket/runs/JOB --ranks 0,8-15 --steps 1090-1110`: a part of a long job

Open the file at https://ui.perfetto.dev by dragging it there; it does not leave your machine.
"""


def register(app: typer.Typer) -> None:
    app.command("trace", epilog=_EXAMPLES)(trace)


def trace(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER_OR_URL",
            help="A job folder or its URL, PyTorch profiler traces, or Flight Recorder dumps.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What to write, compressed if it ends in .gz; JOB.perfetto-trace.gz if not given.",
        ),
    ] = None,
    ranks: Annotated[
        str, typer.Option(metavar="RANKS", help="Only these, as in 0,8-15; all if not given.")
    ] = "",
    steps: Annotated[
        str, typer.Option(metavar="STEPS", help="Only these, as in 100-120; all if not given.")
    ] = "",
    focus: Annotated[
        bool,
        typer.Option(
            "--focus",
            help="Only what matters: culprits, some peers, who is on the critical path, and the "
            "worst steps; --ranks and --steps go before.",
        ),
    ] = False,
) -> int:
    """Write one timeline of all ranks, on one clock, for Perfetto.

    Steps, phases, communication, kernels, stacks and counters of every rank, and the verdicts over
    the time they speak of. Exit status: 0 written, 2 nothing to write, or not possible.
    """
    from stepscope.cli.sources import open_window

    wanted = parse_spans(ranks, "--ranks", "numbers and ranges, as in 0,8-15")
    span = _one_span(steps)
    _check(out or Path(_ENDING))
    window, problems = open_window(source)
    for problem in problems:
        logger.warning("%s", " ".join(problem.split()))
    scene = _scene(source, window, wanted, span, focus)
    _write(scene, out or _default_name(window))
    return exits.NOTHING_FOUND


def parse_spans(text: str, option: str, form: str) -> list[Span]:
    """`0,8-15` as the first and last of each part.

    Raises:
        UsageError: it is something else.
    """
    found: list[Span] = []
    for part in filter(None, text.replace(" ", "").split(",")):
        numbers = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", part)
        first, last = (int(one or numbers[1]) for one in numbers.groups()) if numbers else (1, 0)
        if first > last:
            raise UsageError(f"{option} {part}: write {form}")
        found.append((first, last))
    return found


def _one_span(steps: str) -> Span | None:
    form = "one range of steps, as in 100-120"
    spans = parse_spans(steps, "--steps", form)
    if len(spans) > 1:
        raise UsageError(f"--steps {steps}: write {form}")
    return spans[0] if spans else None


def _scene(
    source: str, window: Window, wanted: list[Span], steps: Span | None, narrow: bool
) -> Scene:
    """What is drawn, its times on one clock."""
    from stepscope.cli.terminal import progress
    from stepscope.diagnose.overview.focus import focus
    from stepscope.diagnose.prepare.align import align
    from stepscope.diagnose.prepare.clean import clean
    from stepscope.diagnose.prepare.operator_waits import with_operator_waits
    from stepscope.diagnose.run import diagnose
    from stepscope.report.perfetto import Scene, select, span_of

    chosen = _chosen(source, window.ranks, wanted)
    with progress(f"diagnosing {source}"):
        diagnosis = diagnose(window)
        window, _, _ = align(clean(window)[0])
        matters = focus(window, diagnosis) if narrow else None
        window = with_operator_waits(window)
    if matters is not None:
        chosen = chosen if wanted else matters.ranks
        steps = steps or matters.steps
    part = select(window, chosen, steps)
    if not part.tables:
        raise UsageError(_nothing(source, steps, diagnosis.steps))
    return Scene(part, diagnosis, span_of(window, diagnosis.verdicts), chosen)


def _chosen(source: str, ranks: tuple[int, ...], wanted: list[Span]) -> tuple[int, ...]:
    from stepscope.report import units

    if not ranks:
        raise SourceError(f"{source} holds no rows of any rank")
    for first, last in wanted:
        if not any(first <= rank <= last for rank in ranks):
            asked = f"rank {first}" if first == last else f"ranks {first}-{last}"
            raise UsageError(f"no {asked} in {source}: it holds {units.ranks(ranks)}")
    if not wanted:
        return ranks
    return tuple(rank for rank in ranks if any(a <= rank <= b for a, b in wanted))


def _nothing(source: str, steps: Span | None, there: Span | None) -> str:
    from stepscope.report import units

    if steps is None:
        return f"{source} holds nothing of these ranks that can be drawn"
    held = units.span(there) if there else "no steps"
    return f"no rows of {units.span(steps)} in {source}: it holds {held}"


def _default_name(window: Window) -> Path:
    from stepscope.store.layout import safe_name

    path = Path(safe_name(window.job.job_id) + _ENDING)
    _check(path)
    return path


def _check(path: Path) -> None:
    """Says so before minutes of reading rather than after."""
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder, name a file in it")
    if not os.access(path.parent, os.W_OK):
        why = "it may not be written to" if path.parent.is_dir() else "there is no such folder"
        raise UsageError(f"cannot write {path}: {path.parent}: {why}")


def _write(scene: Scene, path: Path) -> None:
    from stepscope.report import units
    from stepscope.report.perfetto import draw

    try:
        with _opened(path) as write, _progress(len(scene.ranks)) as drawn:
            slices = draw(scene, write, drawn)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    size = f", {units.size(path.stat().st_size)}" if path.is_file() else ""
    exits.complain(
        f"wrote {path}: {units.count(len(scene.ranks), 'rank')}, "
        f"{units.count(slices, 'slice')}{size}; drag it onto https://ui.perfetto.dev to open it"
    )


@contextmanager
def _opened(path: Path) -> Iterator[Callable[[bytes], object]]:
    """Whoever opens the file sees the old one or the whole new one; pipes get it as it comes."""
    through = path.exists() and not path.is_file()
    part = path if through else path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("wb") as file:
            if path.name.endswith(".gz"):
                with closing(PackedFile(file)) as packed:
                    yield packed.write
            else:
                yield file.write
        if not through:
            part.replace(path)
    finally:
        if not through:
            part.unlink(missing_ok=True)


@contextmanager
def _progress(ranks: int) -> Iterator[Callable[[int], object]]:
    """A bar of ranks on stderr, where somebody sees it."""
    from rich import progress as bars
    from rich.console import Console

    console = Console(stderr=True)
    columns = (bars.TextColumn("drawing ranks"), bars.BarColumn(), bars.MofNCompleteColumn(),
               bars.TimeRemainingColumn())  # fmt: skip
    with bars.Progress(*columns, console=console, transient=True,
                       disable=not console.is_terminal) as bar:  # fmt: skip
        task = bar.add_task("", total=ranks)
        yield lambda rank: bar.advance(task)
