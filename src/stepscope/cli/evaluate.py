"""`stepscope evaluate`: how often diagnosis is right, on simulated jobs whose faults are known."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.cli import exits
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.evaluate import Chosen, Result
    from stepscope.evaluate.results import Results

_RUN, _SHOW = "Which jobs are run", "What becomes of the scores"
_ALL = "all"

_EXAMPLES = """Examples:

- `stepscope evaluate`: suite smoke, every fault once, in about a minute

- `stepscope evaluate --suite standard --seeds 8 --json now.json --html now.html`: the full table

- `stepscope evaluate --family hang --family gpu_slow --seeds 20`: some faults only

- `stepscope evaluate --suite argus --ranks 64 --fast --seeds 1`: a paper's faults at one size

- `stepscope evaluate --from now.json --html now.html`: earlier scores again

- `stepscope evaluate --compare before.json now.json`: which jobs came out better or worse

- `stepscope evaluate --suite all --publish docs/evaluation.md`: all tables of the documentation
"""


def _flag(help: str, panel: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel)


SuiteName = Annotated[
    str,
    _flag("Every fault on 16 ranks; on 64 to 512; ARGUS' faults and cases on 64, 512 and 4,096; "
          "every fault on 2,048 to 10,240; or all of them.", _RUN,
          metavar="smoke|standard|argus|large|all"),
]  # fmt: skip
Families = Annotated[
    list[str] | None,
    _flag("Only this fault, or `healthy`; may be repeated.", _RUN, metavar="NAME"),
]
Ranks = Annotated[
    list[int] | None,
    _flag("Only jobs of this size, of those the suite has; may be repeated.", _RUN, metavar="N"),
]
Seeds = Annotated[
    int,
    typer.Option(min=0, help="Jobs per fault; 0: as many as the suite has.", rich_help_panel=_RUN),
]
FirstSeed = Annotated[
    int, typer.Option(min=0, help="The first seed; others follow it.", rich_help_panel=_RUN)
]
Fast = Annotated[
    bool,
    _flag(
        "Diagnose what the simulator made, without the wire; argus and large always do.",
        _RUN,
        "--fast",
    ),
]
Jobs = Annotated[
    int,
    typer.Option(min=0, rich_help_panel=_RUN,
                 help="Processes, as far as memory has room; 0: one per core."),
]  # fmt: skip
Source = Annotated[
    Path | None, _flag("Run nothing: show what --json wrote.", _RUN, "--from", metavar="FILE")
]
Json = Annotated[
    Path | None, _flag("Write every job's result as soon as it is there.", _SHOW, metavar="FILE")
]
Resume = Annotated[
    bool,
    _flag(
        "Go on: run only jobs that --json FILE has not, and those that failed.", _RUN, "--resume"
    ),
]
Html = Annotated[
    Path | None, _flag("Write the scores as a page with plots.", _SHOW, metavar="FILE")
]
Publish = Annotated[
    Path | None, _flag("Replace the suite's tables in a Markdown file.", _SHOW, metavar="FILE")
]
Compare = Annotated[
    tuple[Path, Path] | None,
    _flag("Run nothing: compare two files of --json.", _SHOW, metavar="BEFORE AFTER"),
]


def register(app: typer.Typer) -> None:
    app.command("evaluate", epilog=_EXAMPLES)(evaluate)


def evaluate(
    suite: SuiteName = "smoke", family: Families = None, ranks: Ranks = None, seeds: Seeds = 0,
    first_seed: FirstSeed = 0, fast: Fast = False, jobs: Jobs = 0, source: Source = None,
    resume: Resume = False, json: Json = None, html: Html = None, publish: Publish = None,
    compare: Compare = None,
) -> int:  # fmt: skip
    """Score diagnosis against simulated jobs whose faults are known.

    Plays jobs with every fault there is, diagnoses them without telling what is wrong, and counts
    per fault how often the culprit came first, the cause and the device were right, and anybody
    innocent was named, with 95 % intervals over the jobs. Then come the measures that the papers
    report, beside what they report.

    A job that fails is told in the table, and the others go on. Ctrl-C ends it with the jobs that
    are done, and --resume goes on with the others. With `--suite all` the files of --json and
    --html are one each: `now.smoke.json`, …

    Exit status: 0 done, 1 some job came out worse (with --compare), 2 the command makes no sense,
    130 interrupted.
    """
    if compare is not None:
        return _compare(*compare)
    if source is not None:
        return _show(_read(source), json, html, publish)
    names = _names(suite, publish)
    if resume and json is None:
        raise UsageError("--resume goes on with the file of --json; name that")
    for name in names:
        beside = f".{name}" if len(names) > 1 else ""
        file = _beside(json, beside)
        part = _Part(tuple(family or ()), tuple(ranks or ()), seeds, first_seed)
        results = _run(name, part, fast, jobs, file, resume)
        if results.missing:
            _show(results, file)
            return exits.INTERRUPTED
        _show(results, file, _beside(html, beside), publish)
    return exits.NOTHING_FOUND


def _names(suite: str, publish: Path | None) -> Sequence[str]:
    """The suites that are wanted, once it is known that their tables can be published."""
    from stepscope.evaluate import SUITES
    from stepscope.evaluate.publish import check_room

    if suite != _ALL and suite not in SUITES:
        raise UsageError(f"no suite is called {suite}; there are {', '.join(SUITES)}, {_ALL}")
    names = tuple(SUITES) if suite == _ALL else (suite,)
    if publish is not None:
        for name in names:
            check_room(publish, name)
    return names


def _beside(file: Path | None, ending: str) -> Path | None:
    """`now.json` as `now.smoke.json`."""
    return file and file.with_name(f"{file.stem}{ending}{file.suffix}")


@dataclass(frozen=True)
class _Part:
    """Which jobs of a suite are wanted; nothing: all."""

    families: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    seeds: int = 0
    first_seed: int = 0

    def numbers(self, name: str) -> tuple[int, ...]:
        """The seeds."""
        from stepscope.evaluate import SUITES

        count = self.seeds or SUITES[name].seeds
        return tuple(range(self.first_seed, self.first_seed + count))

    def of(self, name: str) -> Chosen:
        from stepscope.evaluate import SUITES, choose

        return choose(SUITES[name], self.numbers(name), self.families, self.ranks)


def _run(
    name: str, part: _Part, fast: bool, jobs: int, file: Path | None, resume: bool
) -> Results:  # fmt: skip
    """All results of a suite, those before it included; each is written when it is there."""
    from stepscope.cli.terminal import count_progress
    from stepscope.evaluate import SUITES, run
    from stepscope.evaluate.results import write

    chosen, fast = part.of(name), fast or not SUITES[name].by_wire
    before = _before(name, fast, file) if resume and file is not None else ()
    done = {one.id for one in before}
    cases = [case for case in chosen.cases if case.id not in done]

    def put_together(new: Sequence[Result]) -> Results:
        return _together(name, part.numbers(name), fast, [*before, *new], chosen)

    def keep(new: Sequence[Result]) -> None:
        if file is not None:
            write(put_together(new), file)

    workers = min(jobs or os.cpu_count() or 1, len(cases) or 1)
    with count_progress(f"{name}: {len(cases)} simulated jobs") as advance:
        return put_together(run(cases, fast=fast, jobs=workers, progress=advance, keep=keep))


def _before(name: str, fast: bool, file: Path) -> Sequence[Result]:
    """What an earlier run has written, if there was one; who failed, for want of memory perhaps, is
    tried again."""
    if not file.exists():
        return ()
    found = _read(file)
    if (found.suite, found.fast) != (name, fast):
        way = "with --fast" if found.fast else "by wire"
        raise UsageError(f"{file} holds suite {found.suite}, {way}: go on with that, or name "
                         "another file")  # fmt: skip
    return [one for one in found.results if not one.failed]


def _together(
    name: str, seeds: tuple[int, ...], fast: bool, some: Sequence[Result], chosen: Chosen
) -> Results:  # fmt: skip
    """Results in the suite's order, and how many jobs of it have none."""
    import stepscope
    from stepscope.evaluate.results import Results

    order = {case.id: at for at, case in enumerate(chosen.cases)}
    found = sorted(some, key=lambda one: order.get(one.id, len(order)))
    missing = len(order.keys() - {one.id for one in found})
    return Results(name, fast, seeds, stepscope.__version__, tuple(found),
                   chosen.unfit, missing)  # fmt: skip


def _read(file: Path) -> Results:
    from stepscope.evaluate.results import read

    return read(file)


def _show(
    results: Results, json: Path | None, html: Path | None = None, publish: Path | None = None
) -> int:  # fmt: skip
    """Keeps results before anything else, since they may have taken hours, and shows them."""
    from stepscope.evaluate.page import render_page
    from stepscope.evaluate.publish import publish as put
    from stepscope.evaluate.results import write
    from stepscope.evaluate.text import render

    if json is not None:
        write(results, json)
    print(render(results), end="", flush=True)
    if html is not None:
        _write_page(html, render_page(results))
    if publish is not None:
        put(results, publish)
    return exits.NOTHING_FOUND


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
