"""Renders a diagnosis for a terminal or a log: verdicts first, then step and rank times."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stepscope.diagnose.finding import Diagnosis, Verdict
from stepscope.report import beside, story, units
from stepscope.report.plain import printable, without_roots
from stepscope.report.rank_table import rank_tables
from stepscope.report.series import BLOCKS, buckets, sparkline

CLOCK_FLOOR_NS = 1_000_000
"""Smaller clock offsets are normal with NTP and are not shown."""
FULL_VERDICTS = 5
"""Number of verdicts shown in full; each further one gets a single line."""
STACK_FRAMES = 24
"""Innermost frames shown; the outermost ones are launchers and thread start-up."""
LAST_ARRIVALS = 5
"""Lines about last arrivals, the most costly first; the others usually follow from these."""
_LABEL_WIDTH = 8
_INDENT = 2

_ASCII = str.maketrans(
    {"µ": "u", "·": "-", "…": "~", "─": "-"} | dict(zip(BLOCKS, "_.,-=+*#", strict=True))
)
"""Maps one character to one, so that columns stay aligned."""


def render_text(
    diagnosis: Diagnosis, width: int = 80, *, color: bool = False, ascii_only: bool = False
) -> str:
    """The whole report as text, with ANSI colours if `color` is set."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        legacy_windows=False,
        _environ={},
    )
    with console.capture() as capture:
        console.print(Group(*_report(diagnosis, width)))
    lines = (line.rstrip() for line in capture.get().splitlines())
    text = "\n".join(lines).rstrip() + "\n"
    return to_ascii(text) if ascii_only else text


def render_headline(diagnosis: Diagnosis) -> str:
    """The diagnosis in one line, for the live view."""
    return printable(story.headline(diagnosis))


def to_ascii(text: str) -> str:
    """The same text in ASCII, with the same columns."""
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")


def headline_style(diagnosis: Diagnosis) -> str:
    if diagnosis.accused:
        return "bold red"
    return "bold green" if diagnosis.outcome == "healthy" else "bold yellow"


def _report(diagnosis: Diagnosis, width: int) -> Iterator[RenderableType]:
    yield Text(render_headline(diagnosis), style=headline_style(diagnosis))
    if account := story.account(diagnosis):
        yield Text(printable(account))
    yield Text(printable(story.subject(diagnosis)), style="dim")
    if diagnosis.unrecorded:
        yield Text(printable(diagnosis.unrecorded), style="yellow")
    for number, verdict in enumerate(diagnosis.verdicts, 1):
        yield ""
        yield from _verdict(verdict, diagnosis, number)
    yield from _times(diagnosis, width)
    footer = list(_footer(diagnosis))
    if footer:
        yield ""
        yield _fields(footer, style="dim")


def _verdict(verdict: Verdict, diagnosis: Diagnosis, number: int) -> Iterator[RenderableType]:
    if len(diagnosis.verdicts) > 1:
        suspect = "suspect: " if verdict.is_suspect else ""
        yield Text(f"{number}. {suspect}{printable(verdict.summary)}", style="bold")
    if number <= FULL_VERDICTS:
        yield _fields(_verdict_fields(verdict, diagnosis))


def _verdict_fields(verdict: Verdict, diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    words = story.describe(verdict, diagnosis)
    yield "Why", words.why
    yield "Where", words.where
    yield "Since", words.since
    yield "Cost", words.cost
    yield "Do next", words.advice
    yield "Methods", verdict.agreement
    yield "Stack", "\n".join(_stack(verdict.stack))
    for evidence in verdict.evidence:
        yield "Evidence", f"{evidence.method}: {evidence.detail}"


def _stack(frames: tuple[str, ...]) -> Iterator[str]:
    if len(frames) > STACK_FRAMES:
        yield f"… {len(frames) - STACK_FRAMES} outer frames"
    yield from frames[-STACK_FRAMES:]


def _fields(rows: Iterable[tuple[str, str]], style: str = "") -> RenderableType:
    """Label and text side by side; text wraps in its column, and a repeated label is left out."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=_LABEL_WIDTH, style=style or "bold")
    grid.add_column(overflow="fold", style=style)
    last = ""
    for label, text in rows:
        if text:
            lines = "\n".join(printable(line) for line in without_roots(text).split("\n"))
            grid.add_row(Text("" if label == last else label), Text(lines))
            last = label
    return Padding(grid, (0, 0, 0, _INDENT), expand=False)


def _times(diagnosis: Diagnosis, width: int) -> Iterator[RenderableType]:
    if diagnosis.series.steps:
        yield ""
        yield from _series(diagnosis, width)
    yield from _beside(diagnosis)
    yield from rank_tables(diagnosis, width)
    for limit in story.limits(diagnosis):
        yield Padding(Text(limit), (0, 0, 0, _INDENT))
    if heading := story.profiled(diagnosis):
        yield from ("", Text(heading, style="bold"))
        for line in story.function_uses(diagnosis):
            yield Padding(Text(printable(line)), (0, 0, 0, _INDENT))
    if periods := story.periods(diagnosis):
        yield from ("", Text("Slow steps at regular distances", style="bold"))
        for line in periods:
            yield Padding(Text(printable(line)), (0, 0, 0, _INDENT))
    arrivals = story.last_arrivals(diagnosis)
    if arrivals:
        yield from ("", Text("Last arrivals in collectives", style="bold"))
        for line in arrivals[:LAST_ARRIVALS]:
            yield Padding(Text(printable(line)), (0, 0, 0, _INDENT))


def _series(diagnosis: Diagnosis, width: int) -> Iterator[RenderableType]:
    points = buckets(diagnosis.series, width - _INDENT)
    lowest = units.duration(min(point.low_ns for point in points))
    highest = units.duration(max(point.high_ns for point in points))
    steps = units.span((points[0].first, points[-1].last))
    yield Text(f"Step time, {steps}: {lowest} to {highest}", style="bold")
    yield Text(" " * _INDENT + sparkline(points), no_wrap=True)
    marks = "".join(_mark(diagnosis, point.first, point.last) for point in points)
    if marks.strip():
        yield Text(" " * _INDENT + marks.rstrip(), style="red", no_wrap=True)
        yield Padding(
            Text("^ " + "; ".join(story.windows_by_kind(diagnosis)), "red"), (0, 0, 0, _INDENT)
        )


def _beside(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    if not (heading := beside.heading(diagnosis)):
        return
    yield from ("", Text(printable(heading), style="bold"))
    grid = Table.grid(padding=(0, 2, 0, 0))
    for column, _ in enumerate(beside.Row._fields):
        grid.add_column(justify="right" if column else "left", overflow="fold")
    for row in beside.rows(diagnosis):
        grid.add_row(*map(printable, row))
    yield Padding(grid, (0, 0, 0, _INDENT))


def _mark(diagnosis: Diagnosis, first: int, last: int) -> str:
    hit = any(w.steps[0] <= last and w.steps[1] >= first for w in diagnosis.windows)
    return "^" if hit else " "


def _footer(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    yield "Clocks", _clocks(diagnosis)
    for line in story.not_run(diagnosis):
        yield "Not run", line
    lost = (f"{units.count(rows, 'row')} of {name}" for name, rows in diagnosis.losses.items())
    yield "Lost", units.names(lost, limit=8)
    overhead = (story.overhead(name, value) for name, value in diagnosis.cost.items())
    yield "Overhead", units.names(overhead, limit=8)


def _clocks(diagnosis: Diagnosis) -> str:
    """The clocks with an offset large enough to confuse a comparison of logs between hosts."""
    off = [clock for clock in diagnosis.clocks if abs(clock.offset_ns) >= CLOCK_FLOOR_NS]
    off.sort(key=lambda clock: -abs(clock.offset_ns))
    return units.names(
        f"{f'{clock.host} ' if clock.host else ''}"
        f"{'' if clock.rank is None else f'rank {clock.rank} '}is "
        f"{units.duration(abs(clock.offset_ns))} {'ahead' if clock.offset_ns > 0 else 'behind'}"
        for clock in off
    )
