"""`stepscope evaluate`: measures diagnosis accuracy on simulated jobs with known faults."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.cli import exits, fitted
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.evaluate import Chosen, Result
    from stepscope.evaluate.conditions import Condition
    from stepscope.evaluate.results import Results

_RUN, _SHOW = "Which jobs to run", "What to do with the scores"
_ALL = "all"

_EXAMPLES = """Examples:

- `stepscope evaluate`: the smoke suite, every fault once, in about a minute

- `stepscope evaluate --suite standard --seeds 8 --json now.json --html now.html`: the full table

- `stepscope evaluate --family hang --family gpu_slow --seeds 20`: some faults only

- `stepscope evaluate --suite argus --ranks 64 --fast --seeds 1`: ARGUS' faults at one size

- `stepscope evaluate --fast --method argus-l2-published`: a published form beside the default

- `stepscope evaluate --suite standard --fast --strip no-kernels,half-ranks`: with less data

- `stepscope evaluate --fast --strip --collectors`: every kind of missing data; `--list` has them

- `stepscope evaluate --from now.json --html now.html`: show earlier scores again

- `stepscope evaluate --compare before.json now.json`: list the jobs that improved or regressed

- `stepscope evaluate --suite all --publish docs/evaluation.md`: update all tables

- `stepscope evaluate --suite standard --family irregular --ranks 64 --seeds 8 --train-forest
forest.json`: train Holmes' random forest

- `stepscope evaluate --fit-confidence weights.json --labelled now.json`: fit the confidence of
verdicts
"""


def _flag(help: str, panel: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel)


SuiteName = Annotated[
    str,
    _flag("smoke: every fault on 16 ranks; standard: on 64 to 512; argus: the faults and cases of "
          "the ARGUS paper on 64, 512 and 4,096; large: every fault on 2,048 to 10,240; all: every "
          "suite.", _RUN,
          metavar="smoke|standard|argus|large|all"),
]  # fmt: skip
Families = Annotated[
    list[str] | None,
    _flag("Run only this fault, or `healthy`; may be repeated.", _RUN, metavar="NAME"),
]
Ranks = Annotated[
    list[int] | None,
    _flag("Run only jobs of this size in the suite; may be repeated.", _RUN, metavar="N"),
]
Seeds = Annotated[
    int,
    typer.Option(
        min=0, help="Jobs per fault; 0: the number that the suite defines.", rich_help_panel=_RUN
    ),
]
FirstSeed = Annotated[
    int,
    typer.Option(min=0, help="The first seed; the others count up from it.", rich_help_panel=_RUN),
]
Fast = Annotated[
    bool,
    _flag(
        "Diagnose simulated tables directly, without the wire format; always so for argus and "
        "large.",
        _RUN,
        "--fast",
    ),
]
Jobs = Annotated[
    int,
    typer.Option(min=0, rich_help_panel=_RUN,
                 help="Worker processes, limited by memory; 0: one per core."),
]  # fmt: skip
Source = Annotated[
    Path | None,
    _flag("Run nothing; show the results in a --json file.", _RUN, "--from", metavar="FILE"),
]
Json = Annotated[
    Path | None, _flag("Write results, updated as jobs finish.", _SHOW, metavar="FILE")
]
Resume = Annotated[
    bool,
    _flag(
        "Continue: run only jobs that are missing or failed in the --json file.", _RUN, "--resume"
    ),
]
Html = Annotated[
    Path | None, _flag("Write the scores as an HTML page with plots.", _SHOW, metavar="FILE")
]
Publish = Annotated[
    Path | None, _flag("Replace the suite's tables in a Markdown file.", _SHOW, metavar="FILE")
]
Compare = Annotated[
    tuple[Path, Path] | None,
    _flag("Run nothing; compare two --json files.", _SHOW, metavar="BEFORE AFTER"),
]


Strip = Annotated[
    str | None,
    _flag(
        "Diagnose each job again with less data: some of the names that `--list` describes, "
        "separated by commas; `a+b` removes both at once. `all`, or no NAME: each of them.",
        _RUN, "--strip", metavar="[NAME,…]",
    ),
]  # fmt: skip
Collectors = Annotated[
    str | None,
    _flag(
        "Diagnose each job again with only the data that these collectors write: `hooks`, `cupti`, "
        "`nccl`, `all`, `kineto`; `all+topology` with the switches. No NAME: each of them.",
        _RUN, "--collectors", metavar="[NAME,…]",
    ),
]  # fmt: skip
List = Annotated[
    bool, _flag("Run nothing; list suites, strips and sets of collectors.", _SHOW, "--list")
]
Methods = Annotated[
    list[str] | None,
    _flag(
        "Score this method alone beside the default, on the same jobs; may be repeated. "
        "`stepscope methods` lists all of them.",
        _RUN, "--method", metavar="NAME",
    ),
]  # fmt: skip

TrainForest = Annotated[
    Path | None,
    _flag(
        "Diagnose nothing; train Holmes' random forest on the chosen jobs, and score it on those "
        "of the last quarter of the seeds. Needs scikit-learn: `stepscope[forest]`.",
        _SHOW, metavar="FILE",
    ),
]  # fmt: skip
TrainJob = Annotated[
    list[Path] | None,
    _flag(
        "With --train-forest, train also on this recorded job, whose truth.json is beside it; may "
        "be repeated.",
        _RUN, metavar="FOLDER",
    ),
]  # fmt: skip

FitConfidence = Annotated[
    Path | None,
    _flag(
        "Diagnose nothing; fit the confidence of verdicts to those in --labelled files. Needs "
        "scikit-learn: `stepscope[forest]`.",
        _SHOW, metavar="FILE",
    ),
]  # fmt: skip
LabelledFiles = Annotated[
    list[Path] | None,
    _flag(
        "With --fit-confidence: results of --json, or a line of JSON per verdict with `origin`, "
        "`kind`, `facts` and `right`; may be repeated.",
        _SHOW, "--labelled", metavar="FILE",
    ),
]  # fmt: skip


def register(app: typer.Typer) -> None:
    app.command("evaluate", epilog=_EXAMPLES)(evaluate)


_EVERY = {"--strip": _ALL, "--collectors": "hooks,cupti,nccl,all,all+topology,kineto"}
"""What these options mean without a value."""


def with_names(args: list[str]) -> list[str]:
    """Arguments in which `--strip` and `--collectors` always have a value.

    Another command's arguments are left alone: `run` has those of somebody's script.
    """
    if next((one for one in args if not one.startswith("-")), "") != "evaluate":
        return args
    given: list[str] = []
    for one, following in zip_longest(args, args[1:], fillvalue="-"):
        given.append(one)
        if one in _EVERY and following.startswith("-"):
            given.append(_EVERY[one])
    return given


def evaluate(
    suite: SuiteName = "smoke", family: Families = None, ranks: Ranks = None, seeds: Seeds = 0,
    first_seed: FirstSeed = 0, fast: Fast = False, jobs: Jobs = 0, source: Source = None,
    resume: Resume = False, json: Json = None, html: Html = None, publish: Publish = None,
    compare: Compare = None, method: Methods = None, strip: Strip = None,
    collectors: Collectors = None, train_forest: TrainForest = None, train_job: TrainJob = None,
    fit_confidence: FitConfidence = None, labelled: LabelledFiles = None, list_all: List = False,
) -> int:  # fmt: skip
    """Score diagnosis against simulated jobs whose faults are known.

    Simulates jobs with every known fault and diagnoses them blind. For each fault it counts how
    often the culprit was ranked first, how often the cause and the device were right, and how often
    an innocent rank was blamed, with 95 % intervals over the jobs. It also prints the measures that
    the papers report, next to the published values.

    A job that fails is listed in the table, and the others continue. Ctrl-C stops and shows the
    finished jobs; --resume runs the remaining ones. With `--suite all`, --json and --html write one
    file per suite: `now.smoke.json`, …

    With --strip or --collectors, each job is diagnosed again with less data. A verdict may then
    become a suspect or unknown. It must not accuse an innocent rank, nor call a job healthy that
    loses more than 10 %. The table counts both.

    Exit status: 0 done, 1 some job regressed (with --compare), 2 the command line is invalid,
    130 interrupted.
    """
    if list_all:
        return _list()
    if compare is not None:
        return _compare(*compare)
    if source is not None:
        return _show(_read(source), json, html, publish)
    conditions = _conditions(strip, collectors)
    names, methods = _names(suite, publish, bool(conditions)), _known(method or ())
    if conditions and methods:
        raise UsageError("--method scores whole jobs: leave out --strip and --collectors")
    if train_job and train_forest is None:
        raise UsageError("--train-job needs --train-forest FILE, the forest to train")
    if resume and json is None:
        raise UsageError("--resume needs --json FILE, the results to continue")
    selection = _Selection(tuple(family or ()), tuple(ranks or ()), seeds, first_seed)
    if train_forest is not None or fit_confidence is not None:
        _check_alone(methods, conditions, json, html, publish)
        return (_train(train_forest, suite, selection, train_job or ()) if train_forest is not None
                else _fit(Path(fit_confidence or ""), labelled or ()))  # fmt: skip
    for name in names:
        beside = f".{name}" if len(names) > 1 else ""
        file = _with_suffix(json, beside)
        results = _run(name, selection, fast, jobs, file, resume, conditions=conditions)
        if results.missing:
            _show(results, file)
            return exits.INTERRUPTED
        _show(results, file, _with_suffix(html, beside), publish)
        if methods:
            files = {one: _with_suffix(file, f".{one}") for one in methods}
            _show_methods(results, {one: _run(name, selection, fast, jobs, files[one], resume, one)
                                    for one in methods})  # fmt: skip
    return exits.NOTHING_FOUND


def _show_methods(results: Results, others: Mapping[str, Results]) -> None:
    from stepscope.evaluate.text import render_methods

    print("\n" + render_methods(results, others), end="", flush=True)


def _check_alone(*others: object) -> None:
    """Training takes no option about diagnoses.

    Raises:
        UsageError: one was given.
    """
    if any(others):
        raise UsageError(
            "--train-forest and --fit-confidence score no diagnoses: leave "
            "out --method, --strip, --collectors, --json, --html and --publish"
        )


def _fit(file: Path, labelled: Sequence[Path]) -> int:
    from stepscope.cli.confidence import fit_confidence

    return fit_confidence(file, labelled)


def _list() -> int:
    from stepscope.evaluate import SUITES
    from stepscope.evaluate.conditions import listing

    wide = max(map(len, SUITES))
    lines = [f"  {name.ljust(wide)}  {suite.help}" for name, suite in SUITES.items()]
    print("\n".join(["--suite:", *lines, "", listing()]), end="")
    return exits.NOTHING_FOUND


def _conditions(strip: str | None, collectors: str | None) -> tuple[Condition, ...]:
    """Nothing, or the jobs as they are and under each of these conditions."""
    from stepscope.evaluate.conditions import WHOLE, as_collected, stripped

    chosen = (*stripped(strip or ""), *as_collected(collectors or ""))
    return (WHOLE, *chosen) if chosen else ()


def _known(methods: Sequence[str]) -> tuple[str, ...]:
    """The methods to score; a wrong name is reported before hours of simulation."""
    if methods:
        from stepscope.diagnose.registry import chosen

        chosen(methods)
    return tuple(dict.fromkeys(methods))


def _names(suite: str, publish: Path | None, less_data: bool) -> Sequence[str]:
    """The suites to run, after a check that their tables can be published."""
    from stepscope.evaluate import SUITES
    from stepscope.evaluate.publish import check_room, place_of

    if suite != _ALL and suite not in SUITES:
        raise UsageError(f"unknown suite {suite}; known: {', '.join(SUITES)}, {_ALL}")
    names = tuple(SUITES) if suite == _ALL else (suite,)
    if publish is not None:
        for name in names:
            check_room(publish, place_of(name, less_data))
    return names


def _with_suffix(file: Path | None, ending: str) -> Path | None:
    """`now.json` as `now.smoke.json`."""
    return file and file.with_name(f"{file.stem}{ending}{file.suffix}")


@dataclass(frozen=True)
class _Selection:
    """Which jobs of a suite to run; empty fields: all."""

    families: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    seeds: int = 0
    first_seed: int = 0

    def numbers(self, name: str) -> tuple[int, ...]:
        """The seeds for one suite."""
        from stepscope.evaluate import SUITES

        count = self.seeds or SUITES[name].seeds
        return tuple(range(self.first_seed, self.first_seed + count))

    def of(self, name: str) -> Chosen:
        return self.of_seeds(name, self.numbers(name))

    def of_seeds(self, name: str, seeds: Sequence[int]) -> Chosen:
        from stepscope.evaluate import SUITES, choose

        return choose(SUITES[name], seeds, self.families, self.ranks)


def _train(file: Path, suite: str, selection: _Selection, recorded: Sequence[Path]) -> int:
    """Trains on the first seeds of one suite and scores on the others."""
    from stepscope.cli.forest import Training
    from stepscope.evaluate.forest import split

    if suite == _ALL:
        raise UsageError("--train-forest takes the jobs of one suite: name it with --suite")
    seeds, others = split(selection.numbers(suite))
    jobs, held_out = (selection.of_seeds(suite, some).cases for some in (seeds, others))
    return Training(file, suite, seeds, jobs, others, held_out, tuple(recorded)).run()


def _run(
    name: str, selection: _Selection, fast: bool, jobs: int, file: Path | None, resume: bool,
    method: str | None = None, conditions: tuple[Condition, ...] = (),
) -> Results:  # fmt: skip
    """All results of a suite, including earlier ones; the file is updated after every job."""
    from stepscope.cli.terminal import count_progress
    from stepscope.diagnose.settings import Settings
    from stepscope.evaluate import SUITES, run
    from stepscope.evaluate.results import Keeper
    from stepscope.evaluate.runner import result_ids

    chosen, fast = selection.of(name), fast or not SUITES[name].by_wire
    before = _before(name, fast, file) if resume and file is not None else ()
    done = {result.id for result in before}
    cases = [case for case in chosen.cases if not done.issuperset(result_ids(case, conditions))]
    again = {id for case in cases for id in result_ids(case, conditions)}
    kept = [result for result in before if result.id not in again]

    def combined(new: Sequence[Result]) -> Results:
        return _combine(name, selection.numbers(name), fast, [*kept, *new], chosen, conditions)

    keeper = None if file is None else Keeper(file)

    def keep(new: Sequence[Result]) -> None:
        if keeper is not None:
            keeper.keep(combined(new))

    workers = min(jobs or os.cpu_count() or 1, len(cases) or 1)
    title = f"{name}: {len(cases)} simulated jobs" + (f", {method} alone" if method else "")
    settings = Settings(methods=(method,) if method else ())
    with count_progress(title) as advance:
        return combined(run(
            cases, fast=fast, jobs=workers, progress=advance, keep=keep, settings=settings,
            conditions=conditions,
        ))  # fmt: skip


def _before(name: str, fast: bool, file: Path) -> Sequence[Result]:
    """The results of an earlier run, without failed jobs: those may have lacked memory, and run
    again."""
    if not file.exists():
        return ()
    found = _read(file)
    if (found.suite, found.fast) != (name, fast):
        mode = "with --fast" if found.fast else "without --fast"
        raise UsageError(f"{file} contains suite {found.suite}, run {mode}: continue that one, or "
                         "name another file")  # fmt: skip
    return [result for result in found.results if not result.failed]


def _combine(
    name: str, seeds: tuple[int, ...], fast: bool, results: Sequence[Result], chosen: Chosen,
    conditions: tuple[Condition, ...],
) -> Results:  # fmt: skip
    """The results in the order of the suite, and the number of jobs without a result."""
    import stepscope
    from stepscope.evaluate.results import Results
    from stepscope.evaluate.runner import result_ids

    ids = [result_ids(case, conditions) for case in chosen.cases]
    order = {id: at for at, id in enumerate(id for some in ids for id in some)}
    found = sorted((one for one in results if one.id in order), key=lambda one: order[one.id])
    there = {one.id for one in found}
    missing = sum(not there.issuperset(some) for some in ids)
    return Results(name, fast, seeds, stepscope.__version__, tuple(found), chosen.unfit, missing,
                   tuple(one.name for one in conditions))  # fmt: skip


def _read(file: Path) -> Results:
    from stepscope.evaluate.results import read

    return read(file)


def _show(
    results: Results, json: Path | None, html: Path | None = None, publish: Path | None = None
) -> int:  # fmt: skip
    """Writes the results first, because they may have taken hours, and then shows them."""
    from stepscope.evaluate.page import render_page
    from stepscope.evaluate.publish import publish as put
    from stepscope.evaluate.results import write
    from stepscope.evaluate.text import render

    if json is not None:
        write(results, json)
    print(render(results), end="", flush=True)
    if html is not None:
        fitted.write(html, render_page(results))
    if publish is not None:
        put(results, publish)
    return exits.NOTHING_FOUND


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
