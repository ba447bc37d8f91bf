"""`stepscope evaluate`: how often diagnosis is right, on simulated jobs whose faults are known."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.cli import exits
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.evaluate.results import Results

_EXAMPLES = """Examples:

- `stepscope evaluate`: suite smoke, every fault once, in about a minute

- `stepscope evaluate --suite standard --seeds 8 --json now.json --html now.html`: the full table

- `stepscope evaluate --family hang --family gpu_slow --seeds 20`: some faults only

- `stepscope evaluate --compare before.json now.json`: which jobs came out better or worse

- `stepscope evaluate --suite standard --publish docs/evaluation.md`: the table in the documentation
"""


def register(app: typer.Typer) -> None:
    app.command("evaluate", epilog=_EXAMPLES)(evaluate)


def evaluate(
    suite: Annotated[
        str,
        typer.Option(
            metavar="smoke|standard|large",
            help="Every fault on 16 ranks; on 64 to 512; on 2,048 to 10,240.",
        ),
    ] = "smoke",
    family: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this fault, or `healthy`; may be repeated."),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=0, help="Jobs per fault; 0: as many as the suite has.")
    ] = 0,
    fast: Annotated[
        bool, typer.Option("--fast", help="Diagnose what the simulator made, without the wire.")
    ] = False,
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0: one per core.")] = 0,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every job's result.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the scores as a page with plots.")
    ] = None,
    publish: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Replace this suite's tables in a Markdown file."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Run nothing: show what --json wrote."),
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="BEFORE AFTER", help="Run nothing: compare two files of --json."),
    ] = None,
) -> int:
    """Score diagnosis against simulated jobs whose faults are known.

    Prints per fault how often the culprit came first, with 95 % intervals over the jobs.

    Exit status: 0 done, 1 some job came out worse (with --compare), 2 the command makes no sense.
    """
    if compare is not None:
        return _compare(*compare)
    results = _run(suite, family or [], seeds, fast, jobs) if source is None else _read(source)
    _keep(results, json)
    _show(results)
    _write(results, html, publish)
    return exits.NOTHING_FOUND


def _run(name: str, families: list[str], seeds: int, fast: bool, jobs: int) -> Results:
    import stepscope
    from stepscope.cli.terminal import count_progress
    from stepscope.evaluate import SUITES, choose, run
    from stepscope.evaluate.results import Results

    if name not in SUITES:
        raise UsageError(f"no suite is called {name}; there are {', '.join(SUITES)}")
    numbers = tuple(range(seeds or SUITES[name].seeds))
    chosen = choose(SUITES[name], numbers, families)
    workers = min(jobs or os.cpu_count() or 1, len(chosen.cases) or 1)
    with count_progress(f"{len(chosen.cases)} simulated jobs") as advance:
        results = run(chosen.cases, fast=fast, jobs=workers, progress=advance)
    return Results(name, fast, numbers, stepscope.__version__, tuple(results), chosen.unfit)


def _read(file: Path) -> Results:
    from stepscope.evaluate.results import read

    return read(file)


def _show(results: Results) -> None:
    from stepscope.evaluate.text import render

    print(render(results), end="", flush=True)


def _keep(results: Results, json: Path | None) -> None:
    """Before anything else: they may have taken hours."""
    from stepscope.evaluate.results import write

    if json is not None:
        write(results, json)


def _write(results: Results, html: Path | None, publish: Path | None) -> None:
    from stepscope.evaluate.page import render_page
    from stepscope.evaluate.publish import publish as put

    if html is not None:
        _write_page(html, render_page(results))
    if publish is not None:
        put(results, publish)


def _write_page(file: Path, page: str) -> None:
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from error


def _compare(before: Path, after: Path) -> int:
    from stepscope.evaluate.results import compare, read
    from stepscope.evaluate.text import render_changes

    found = compare(read(before), read(after))
    if not found.common:
        raise UsageError(
            f"{before} and {after} have no job in common: run the same suite and seeds"
        )
    print(render_changes(found), end="", flush=True)
    return exits.FOUND if found.worse else exits.NOTHING_FOUND
