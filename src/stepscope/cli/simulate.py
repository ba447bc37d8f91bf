"""`stepscope simulate`: writes the job folder of a simulated job, and its true faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.cli import exits
from stepscope.cli import scenario as flags
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.cli.streaming import Sink
    from stepscope.simulate import Scenario, Truth
    from stepscope.store.location import Location
    from stepscope.trace import Job

FLUSH_SECONDS = 2.0
"""How often rows reach the folder by default."""
LATE_NS = 2_000_000_000
"""Beyond this delay the simulation itself delays detection, and a warning is printed."""
_RECORDER = "simulate"
"""Recorder name in the job folder, where a processor would use its host name."""

_EXAMPLES = """Examples:

- `stepscope simulate --ranks 64 --steps 100 --out practice`: a healthy job

- `stepscope simulate --fault gpu_slow:rank=37,factor=1.5,from=50 --out practice`: one slow GPU

- `stepscope simulate --fault gpu_slow:rank=3 --fault hang:rank=40,from=80 --out practice`: both

- `stepscope simulate --ranks 32 --dp 32 --ep 8 --workload moe --out practice`: expert parallelism

- `stepscope simulate job.toml --out practice`: a scenario file, for options without a flag

- `stepscope simulate --case argus-5 --out practice`: a job described in a paper

- `stepscope simulate --fault hang:rank=5,from=9 --live --out practice`: in real time

- `stepscope simulate --live --socket /tmp/mine/s.sock --out practice`: through a processor

- `stepscope simulate --list-faults`: list all faults
"""


Out = Annotated[str, typer.Option(metavar="FOLDER_OR_URL", help="The job folder to write.")]
Live = Annotated[bool, typer.Option("--live", help="Write the job in real time, until Ctrl-C.")]
Socket = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="With --live: simulated ranks send their records to the processor at this socket, "
        "which writes --out; one is started if none answers. Counters and stacks are not sent.",
    ),
]

Recorders = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="With --live: number of processors that the hosts share [default: one per host, at "
        "most 64].",
    ),
]
Flush = Annotated[
    float | None,
    typer.Option(
        "--flush-seconds", min=0.1, max=60, metavar="SECONDS",
        help="With --live: how often processors write [default: 2].",
    ),
]  # fmt: skip


def register(app: typer.Typer) -> None:
    app.command("simulate", epilog=_EXAMPLES)(simulate)


def simulate(
    scenario: flags.File = None, case: flags.Case = "",
    ranks: flags.Ranks = None, steps: flags.Steps = None, seed: flags.Seed = None,
    workload: flags.Workload = None, detail: flags.Detail = None,
    dp: flags.Dp = None, tp: flags.Tp = None, pp: flags.Pp = None, cp: flags.Cp = None,
    ep: flags.Ep = None, chunks: flags.Chunks = None, microbatches: flags.Microbatches = None,
    sharding: flags.Sharding = None,
    fault: flags.Faults = None, list_faults: flags.ListFaults = False,
    list_cases: flags.ListCases = False, out: Out = "", live: Live = False,
    socket: Socket = None, recorders: Recorders = None, flush_seconds: Flush = None,
) -> int:  # fmt: skip
    """Write the job folder of a simulated job, to try `stepscope diagnose` on.

    The true faults are written next to the folder, in `FOLDER.truth.json`.

    Exit status: 0 written, 2 the scenario is invalid or the folder cannot be written.
    """
    if list_faults or list_cases:
        _explain(list_faults, list_cases)
        return exits.NOTHING_FOUND
    if not out:
        raise UsageError("--out is missing: name the job folder to write")
    split = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "chunks": chunks,
             "microbatches": microbatches, "sharding": sharding}  # fmt: skip
    given = {"ranks": ranks, "steps": steps, "seed": seed, "detail": detail,
             "workload": {"kind": workload}, "parallelism": split}  # fmt: skip
    requested = flags.scenario_from(scenario, case, given, dp, fault or ())
    if socket is not None and not live:
        raise UsageError("--socket needs --live")
    if (recorders or flush_seconds) and (socket is not None or not live):
        raise UsageError(
            "--recorders and --flush-seconds need --live, and do not combine with --socket"
        )
    if live:
        job = flags.named_after(requested, out)
        _live(job, _new_folder(out), out, socket, recorders, flush_seconds or FLUSH_SECONDS)
    else:
        _write(flags.named_after(requested, out), _new_folder(out), out)
    return exits.NOTHING_FOUND


def _new_folder(out: str) -> Location:
    from stepscope.store.location import Location

    location = Location.parse(out)
    if any(location.top()):
        raise UsageError(f"{location} already exists and is not empty; name another --out")
    return location


def _write(scenario: Scenario, location: Location, out: str) -> None:
    from stepscope.cli.terminal import count_progress, progress
    from stepscope.cli.writing import write_window
    from stepscope.simulate import simulate as play

    with count_progress(f"simulating {scenario.ranks} ranks") as advance:
        simulation = play(scenario, advance)
    with progress(f"writing {location}"):
        write_window(simulation.window, location, _RECORDER)
        truth = _write_truth(simulation.truth, out)
    exits.print_stderr(f"wrote {location}; its true faults: {truth}; "
                       f"next: `stepscope diagnose {location}`")  # fmt: skip


def _live(
    scenario: Scenario, location: Location, out: str, socket: Path | None, recorders: int | None,
    flush_seconds: float,
) -> None:  # fmt: skip
    """Plays the job in real time; the truth is written first, to measure time to detection."""
    import time

    from stepscope.cli.streaming import stream
    from stepscope.cli.terminal import count_progress
    from stepscope.report.units import duration
    from stepscope.simulate.live import LOOK_NS, slices
    from stepscope.simulate.run import prepare, truth_of

    with count_progress(f"simulating {scenario.ranks} ranks") as advance:
        truth = _write_truth(truth_of(scenario, advance), out)
    job = prepare(scenario).world.cluster.job()
    sink = _sink(job, location, out, socket, recorders, flush_seconds)
    exits.print_stderr(f"writing {location} in real time, until Ctrl-C; its true faults: "
                       f"{truth}; next: `stepscope diagnose {location} --follow`")  # fmt: skip
    epoch_ns = time.time_ns()
    look_ns = max(LOOK_NS, int(flush_seconds * 1e9))
    try:
        late_ns = stream(slices(scenario, epoch_ns, look_ns), sink, epoch_ns)
    finally:
        sink.close()
    if late_ns > LATE_NS:
        exits.print_stderr(f"rows were up to {duration(late_ns)} late: this machine is too slow or "
                           "too busy for a job of this size")  # fmt: skip


def _sink(
    job: Job, location: Location, out: str, socket: Path | None, recorders: int | None,
    flush_seconds: float,
) -> Sink:  # fmt: skip
    if socket is not None:
        from stepscope.cli.ranks import ProcessorSink

        return ProcessorSink(job, out, socket)
    from stepscope.cli.streaming import StoreSink

    return StoreSink(job, location, recorders, flush_seconds)


def _write_truth(truth: Truth, out: str) -> str:
    """Writes the truth next to the folder, not into it: a diagnosis must not read it."""
    from stepscope.store.location import Location

    folder, _, name = out.rstrip("/").rpartition("/")
    name = f"{name}.truth.json"
    text = json.dumps(truth.to_json(), indent=2) + "\n"
    Location.parse(folder or ("/" if out.startswith("/") else ".")).put(name, text.encode())
    return f"{folder}/{name}" if "/" in out.rstrip("/") else name


def _explain(faults: bool, cases: bool) -> None:
    from stepscope.cli.terminal import width
    from stepscope.simulate.explain import explain_cases, explain_faults

    pages = ((faults, explain_faults), (cases, explain_cases))
    print("\n".join(explain(width()) for shown, explain in pages if shown), end="")
