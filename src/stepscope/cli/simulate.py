"""`stepscope simulate`: a job folder of a job that never ran, and what is really wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.cli import exits
from stepscope.errors import SourceError, UsageError

if TYPE_CHECKING:
    from stepscope.simulate import Scenario, Truth
    from stepscope.store.location import Location

_RECORDER = "simulate"
"""In place of the host whose processor wrote a folder."""

_EXAMPLES = """Examples:

- `stepscope simulate --ranks 64 --steps 100 --out practice`: a healthy job

- `stepscope simulate --fault gpu_slow:rank=37,factor=1.5,from=50 --out practice`: one slow GPU

- `stepscope simulate --fault gpu_slow:rank=3 --fault hang:rank=40,from=80 --out practice`: two

- `stepscope simulate --ranks 32 --dp 32 --ep 8 --workload moe --out practice`: experts

- `stepscope simulate job.toml --out practice`: all that flags cannot say

- `stepscope simulate --case argus-5 --out practice`: a job that a paper tells of

- `stepscope simulate --fault hang:rank=5,from=9 --live --out practice`: as if it ran now

- `stepscope simulate --list-faults`: everything that can go wrong
"""


def register(app: typer.Typer) -> None:
    app.command("simulate", epilog=_EXAMPLES)(simulate)


def simulate(
    scenario: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A scenario in TOML; flags come on top.")
    ] = None,
    out: Annotated[
        str, typer.Option(metavar="FOLDER_OR_URL", help="The job folder to write.")
    ] = "",
    ranks: Annotated[int | None, typer.Option(help="GPUs of the job; 64 unless given.")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps; 100 unless given.")] = None,
    seed: Annotated[int | None, typer.Option(help="Equal seeds give equal jobs.")] = None,
    dp: Annotated[int | None, typer.Option(help="Data parallelism; what is left of RANKS.")] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor parallelism.")] = None,
    pp: Annotated[int | None, typer.Option(help="Pipeline stages.")] = None,
    cp: Annotated[int | None, typer.Option(help="Context parallelism.")] = None,
    ep: Annotated[int | None, typer.Option(help="Expert parallelism, within dp.")] = None,
    chunks: Annotated[
        int | None, typer.Option(help="Model chunks per stage; above 1 the pipeline interleaves.")
    ] = None,
    microbatches: Annotated[int | None, typer.Option(help="Microbatches per step.")] = None,
    sharding: Annotated[
        str | None, typer.Option(metavar="ddp|zero1|fsdp", help="Of gradients and parameters.")
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(metavar="dense|moe|variable", help="Variable: inputs differ in length."),
    ] = None,
    detail: Annotated[
        str | None,
        typer.Option(metavar="auto|full|normal|brief", help="How much is written of every rank."),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:KEY=VALUE,…", help="What goes wrong; may be given repeatedly."),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Write while it runs, in real time, until Ctrl-C.")
    ] = False,
    case: Annotated[
        str, typer.Option(metavar="NAME", help="A job that a paper tells of; flags come on top.")
    ] = "",
    list_cases: Annotated[
        bool, typer.Option("--list-cases", help="Tell every case and its faults, and stop.")
    ] = False,
    list_faults: Annotated[
        bool, typer.Option("--list-faults", help="Explain every fault and its keys, and stop.")
    ] = False,
) -> int:
    """Write the folder of a simulated job, to try `stepscope diagnose` on.

    What is really wrong with it lies beside the folder, in `FOLDER.truth.json`.

    Exit status: 0 written, 2 the scenario makes no sense or the folder cannot be written.
    """
    if list_faults or list_cases:
        _explain(list_faults, list_cases)
        return exits.NOTHING_FOUND
    if not out:
        raise UsageError("--out is missing: name the job folder to write")
    parallelism = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "chunks": chunks,
                   "microbatches": microbatches, "sharding": sharding}  # fmt: skip
    given = {
        "ranks": ranks, "steps": steps, "seed": seed, "detail": detail,
        "parallelism": _given(parallelism), "workload": _given({"kind": workload}),
    }  # fmt: skip
    if case and scenario is not None:
        raise UsageError("a scenario is a FILE or a --case, not both")
    values = _file_values(scenario) if scenario is not None else _case_values(case)
    wanted = _scenario(values, _given(given), fault or [], dp)
    location = _new_folder(out)
    wanted = _named(wanted, out)
    if live:
        _live(wanted, location, out)
    else:
        _write(wanted, location, out)
    return exits.NOTHING_FOUND


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in (None, {})}


def _file_values(file: Path) -> dict[str, Any]:
    from stepscope.simulate.parse import read_toml

    return read_toml(_text(file))


def _case_values(case: str) -> dict[str, Any]:
    from stepscope.simulate.cases import case_values

    return case_values(case) if case else {}


def _scenario(
    values: dict[str, Any], given: dict[str, Any], faults: list[str], dp: int | None
) -> Scenario:
    """A scenario, the flags over it, and the faults of both."""
    from dataclasses import replace

    from stepscope.simulate.parse import from_values, parse_fault

    for key, value in given.items():
        values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
    if dp is not None:
        values = _with_dp(values, dp)
    scenario = from_values(values)
    if dp is not None and scenario.dp != dp:
        raise UsageError(f"dp={dp} does not fit: {scenario.ranks} ranks, of which tp x cp x pp "
                         f"leave dp={scenario.dp}")  # fmt: skip
    return replace(scenario, faults=(*scenario.faults, *map(parse_fault, faults)))


def _with_dp(values: dict[str, Any], dp: int) -> dict[str, Any]:
    """Where only data parallelism is given, there is no other."""
    asked = dict(values.get("parallelism", {}))
    asked.setdefault("tp", 1)
    asked.setdefault("pp", 1)
    ranks = dp * asked["tp"] * asked["pp"] * asked.get("cp", 1)
    return {"ranks": ranks, **values, "parallelism": asked}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise SourceError(f"cannot read the scenario {file}: {why}") from error


def _new_folder(out: str) -> Location:
    from stepscope.store.location import Location

    location = Location.parse(out)
    if any(location.top()):
        raise UsageError(f"{location} is there already and not empty; name another --out")
    return location


def _named(scenario: Scenario, out: str) -> Scenario:
    """Called like its folder, unless it has a name."""
    from dataclasses import replace

    unnamed = scenario.name == type(scenario).name
    return replace(scenario, name=_name_of(out)) if unnamed else scenario


def _write(scenario: Scenario, location: Location, out: str) -> None:
    from stepscope.cli.terminal import count_progress, progress
    from stepscope.cli.writing import write_window
    from stepscope.simulate import simulate as play

    with count_progress(f"simulating {scenario.ranks} ranks") as advance:
        simulation = play(scenario, advance)
    with progress(f"writing {location}"):
        write_window(simulation.window, location, _RECORDER)
        truth = _write_truth(simulation.truth, out)
    exits.complain(f"wrote {location}; what is wrong with it: {truth}; "
                   f"`stepscope diagnose {location}`")  # fmt: skip


def _live(scenario: Scenario, location: Location, out: str) -> None:
    """The truth is there from the start: whoever watches may want to know when it was found."""
    import time
    from contextlib import suppress

    from stepscope.cli.streaming import stream
    from stepscope.cli.terminal import count_progress
    from stepscope.simulate.live import slices
    from stepscope.simulate.run import prepare, truth_of
    from stepscope.store import JobWriter

    with count_progress(f"simulating {scenario.ranks} ranks") as advance:
        truth = _write_truth(truth_of(scenario, advance), out)
    exits.complain(f"writing {location} while it runs, until Ctrl-C; what is wrong with it: "
                   f"{truth}; `stepscope diagnose {location} --follow`")  # fmt: skip
    epoch_ns = time.time_ns()
    job = prepare(scenario).world.cluster.job()
    with suppress(KeyboardInterrupt):
        stream(slices(scenario, epoch_ns), job, JobWriter(location, _RECORDER), epoch_ns)


def _name_of(out: str) -> str:
    return out.rstrip("/").rpartition("/")[2] or "simulated"


def _write_truth(truth: Truth, out: str) -> str:
    """Beside the folder: nobody who diagnoses it must be able to peep."""
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
    print("\n".join(explain(width()) for wanted, explain in pages if wanted), end="")
