"""`stepscope diagnose`: reports what is wrong with a job, from its folder, traces or dumps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.cli import exits
from stepscope.cli.output import check_writable, print_json, write_html
from stepscope.cli.topology import Topology
from stepscope.errors import SourceError, UsageError

if TYPE_CHECKING:
    from stepscope.diagnose.finding import Diagnosis

_EXAMPLES = """Examples:

- `stepscope diagnose stepscope-runs/JOB`: the verdict, its evidence, what to do next

- `stepscope diagnose stepscope-runs/JOB --html report.html`: the same as an HTML page to share

- `stepscope diagnose s3://bucket/runs/JOB --json | jq '.verdicts[0].hosts'`: for programs

- `stepscope diagnose stepscope-runs/JOB --follow`: follow a running job

- `stepscope diagnose stepscope-runs/JOB --explain 7`: why rank 7 was named, or why not

- `stepscope diagnose stepscope-runs/JOB --baseline stepscope-runs/LAST_WEEK`: what is worse than
  in a healthy job

- `stepscope diagnose stepscope-runs/JOB --baseline stepscope-runs/JOB#100-200`: than in steps 100
  to 200

- `stepscope diagnose stepscope-runs/JOB --expected expected.json`: judged by your healthy jobs

- `stepscope diagnose stepscope-runs/JOB --prompt --code . > ask.txt`: to ask a language model

- `stepscope diagnose stepscope-runs/JOB --topology /etc/slurm/topology.conf`: name switches, too

- `stepscope diagnose traces/`: PyTorch profiler traces, one `*.json` or `*.json.gz` per rank

- `stepscope diagnose dumps/`: PyTorch Flight Recorder dumps of a job that hangs

- `stepscope diagnose JOB.perfetto-trace.gz`: a timeline that `stepscope trace` wrote, or the
  folder `JOB/traces` of a job
"""


Source = Annotated[
    str,
    typer.Argument(
        metavar="FOLDER_OR_URL",
        help="A job folder or its URL (s3://…), or a folder of PyTorch profiler traces, of "
        "Flight Recorder dumps or of Perfetto traces that stepscope wrote.",
    ),
]
Follow = Annotated[
    bool,
    typer.Option("--follow", "-f", help="Keep reading until Ctrl-C; print every change."),
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON object and nothing else; with --follow, one line per change.",
    ),
]
Html = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Also write the report as a self-contained HTML page."),
]
Interval = Annotated[
    float, typer.Option(min=0.1, max=3600, metavar="SECONDS", help="How often --follow reads.")
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Run only this method; may be repeated. `stepscope methods` lists all of them; "
        "`default` means all that run by default.",
    ),
]
Explain = Annotated[
    str | None,
    typer.Option(
        metavar="[RANK]",
        help="Also print which rules decided on every candidate, or on one rank: why it was "
        "named, or why not.",
    ),
]
RemoteWrite = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="With --follow: send state and verdicts to this URL by Prometheus Remote Write.",
    ),
]

Other = Annotated[
    str | None,
    typer.Option(
        "--baseline",
        metavar="OTHER[#STEPS]",
        help="A healthy job of the same size to compare with, or some of its steps; with the steps "
        "of FOLDER_OR_URL itself, such as JOB#100-200, what comes after them is diagnosed.",
    ),
]
Expected = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="What functions do in your healthy jobs, as `stepscope baseline` wrote it.",
    ),
]
Prompt = Annotated[
    bool,
    typer.Option(
        "--prompt",
        help="Print one text that any language model can be asked with, instead of the report; "
        "nothing is sent anywhere.",
    ),
]
Code = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="With --prompt: quote the lines around each named function from the source code in "
        "this folder.",
    ),
]
NoRedact = Annotated[
    bool,
    typer.Option(
        "--no-redact",
        help="With --prompt: leave paths, hosts, addresses and values that look secret as they "
        "are.",
    ),
]

EVERYBODY = "all"
"""What --explain means without a rank."""


def register(app: typer.Typer) -> None:
    app.command("diagnose", epilog=_EXAMPLES)(diagnose)


def diagnose(
    source: Source,
    follow: Follow = False,
    as_json: AsJson = False,
    html: Html = None,
    interval: Interval = 5.0,
    method: Methods = None,
    explain: Explain = None,
    topology: Topology = None,
    remote_write: RemoteWrite = None,
    baseline: Other = None,
    expected: Expected = None,
    prompt: Prompt = False,
    code: Code = None,
    no_redact: NoRedact = False,
) -> int:
    """Find what makes a job slow or stuck: which rank, why, since when, at what cost, what to do.

    Exit status: 0 nobody is accused (nothing or only suspects found, or too little recorded), 1
    somebody or something is, 2 FOLDER_OR_URL cannot be read. With --follow,
    Ctrl-C ends the command with the status of the last diagnosis.
    """
    check_writable(html)
    if remote_write is not None and not follow:
        raise UsageError("--remote-write needs --follow")
    if follow and (method or explain is not None or baseline or expected or prompt):
        raise UsageError(
            "--method, --explain, --baseline, --expected and --prompt work on one diagnosis; leave "
            "out --follow"
        )
    _check_prompt(prompt, as_json, code, no_redact)
    if follow:
        from stepscope.cli.follow import follow_job
        from stepscope.cli.series import announcer_to

        last = follow_job(source, interval, as_json, html, announcer_to(remote_write), topology)
    else:
        rank = _rank(explain)
        asked = None if explain is None else () if rank is None else (rank,)
        last = _diagnose_once(source, tuple(method or ()), asked, topology, expected, baseline)
        if last.outcome == "no data":
            raise SourceError(_no_data(source, last))
        if prompt:
            _print_prompt(last, html, code, not no_redact)
        else:
            _show(last, as_json, html)
        if explain is not None and not as_json and not prompt:
            from stepscope.report.trail import render_trail

            print("\n" + render_trail(last, rank), end="")
    for fault in last.faults:
        exits.print_fault(fault)
    return exits.FOUND if found(last) else exits.FAULT if last.faults else exits.NOTHING_FOUND


def _no_data(source: str, diagnosis: Diagnosis) -> str:
    """That nothing was recorded, and which recorder died, if that is known."""
    dead = "; ".join(f"the {one.method} {one.why.partition(';')[0]}" for one in diagnosis.skipped
                     if one.method.startswith("recorder on "))  # fmt: skip
    return f"no data: nothing was recorded in {source}" + (f"; {dead}" if dead else "")


def found(diagnosis: Diagnosis) -> bool:
    """Whether somebody or something is accused, or the job hangs: suspects do not count."""
    return bool(diagnosis.accused) or diagnosis.state == "hang"


def with_rank(args: list[str]) -> list[str]:
    """Arguments in which every `--explain` has a value: the rank behind it, or `all`."""
    given: list[str] = []
    for at, one in enumerate(args):
        given.append(one)
        if one == "--explain" and not (args[at + 1 :] or [""])[0].isdecimal():
            given.append(EVERYBODY)
    return given


def _rank(explain: str | None) -> int | None:
    """The rank that --explain is about; None for all candidates."""
    if explain in (None, EVERYBODY):
        return None
    if not str(explain).isdecimal():
        raise UsageError(f"--explain takes the number of a rank, not {explain!r}")
    return int(str(explain))


def _diagnose_once(
    source: str,
    methods: tuple[str, ...],
    explain: tuple[int, ...] | None,
    topology: Path | None,
    expected: Path | None,
    baseline: str | None,
) -> Diagnosis:
    from stepscope.memory import cycles_kept, keep_freed_memory

    keep_freed_memory()
    with cycles_kept():
        from stepscope.cli.follow import Watch
        from stepscope.cli.terminal import progress
        from stepscope.diagnose.expected import NOTHING
        from stepscope.diagnose.settings import Settings

        used = None
        if methods:
            from stepscope.diagnose.registry import tables

            used = tables(methods)  # a wrong name is reported before minutes of reading
        other = None
        if baseline is not None:
            from stepscope.cli.compared import Baseline

            other = Baseline.parse(baseline)
        known = NOTHING
        if expected is not None:
            from stepscope.cli.baseline import read_expected

            known = read_expected(expected)
        watch = Watch(source, topology=topology, tables=used)
        with progress(f"diagnosing {source}"):
            settings = Settings(methods=methods, explain=explain, expected=known)
            return watch.look_once(settings, other)


def _check_prompt(prompt: bool, as_json: bool, code: Path | None, no_redact: bool) -> None:
    if prompt and as_json:
        raise UsageError("--prompt and --json are two kinds of output; choose one")
    if not prompt and (code is not None or no_redact):
        raise UsageError("--code and --no-redact need --prompt")
    if code is not None and not code.is_dir():
        raise UsageError(f"--code needs the folder of the source code; {code} is none")


def _print_prompt(diagnosis: Diagnosis, html: Path | None, code: Path | None, redact: bool) -> None:
    from stepscope.cli.excerpts import excerpts
    from stepscope.report.prompt import render_prompt

    if html is not None:
        write_html(diagnosis, html)
        exits.print_stderr(f"wrote {html}")
    quoted = () if code is None else excerpts(diagnosis, code)
    print(render_prompt(diagnosis, quoted, redact=redact), end="")


def _show(diagnosis: Diagnosis, as_json: bool, html: Path | None) -> None:
    if html is not None:
        write_html(diagnosis, html)
        exits.print_stderr(f"wrote {html}")
    if diagnosis.unaccounted:
        exits.print_stderr(f"unknown, not healthy: {diagnosis.unaccounted}")
    _warn_of_claims(diagnosis)
    if as_json:
        print_json(diagnosis, indent=2)
    else:
        from stepscope.cli.terminal import print_report

        print_report(diagnosis)


def _warn_of_claims(diagnosis: Diagnosis) -> None:
    """Says which ranks are those of one process although several ran as them."""
    from stepscope.diagnose.overview.recorders import CLAIMED
    from stepscope.report.story import skipped_by_reason
    from stepscope.report.units import names

    for why, ranks in skipped_by_reason(diagnosis).items():
        if why.startswith(CLAIMED):
            exits.print_stderr(f"warning: {names(ranks)}: {why}")
