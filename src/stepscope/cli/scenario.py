"""The scenario that a command line asks for: a file or a case, with flags on top of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.errors import SourceError, UsageError

if TYPE_CHECKING:
    from stepscope.simulate import Scenario

_JOB, _SPLIT, _TROUBLE = "The job", "How it is split over the ranks", "What goes wrong"

File = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="A scenario in TOML; flags come on top.")
]


def _flag(help: str, panel: str, metavar: str | None = None) -> Any:
    return typer.Option(help=help, metavar=metavar, rich_help_panel=panel)


Case = Annotated[str, _flag("A job that a paper tells of; flags come on top.", _JOB, "NAME")]
Ranks = Annotated[int | None, _flag("GPUs of the job; 64 unless given.", _JOB)]
Steps = Annotated[int | None, _flag("Training steps; 100 unless given.", _JOB)]
Seed = Annotated[int | None, _flag("Equal seeds give equal jobs.", _JOB)]
Workload = Annotated[
    str | None, _flag("Variable: inputs differ in length.", _JOB, "dense|moe|variable")
]
Detail = Annotated[
    str | None, _flag("How much is written of every rank.", _JOB, "auto|full|normal|brief")
]
Dp = Annotated[int | None, _flag("Data parallelism; what is left of RANKS.", _SPLIT)]
Tp = Annotated[int | None, _flag("Tensor parallelism.", _SPLIT)]
Pp = Annotated[int | None, _flag("Pipeline stages.", _SPLIT)]
Cp = Annotated[int | None, _flag("Context parallelism.", _SPLIT)]
Ep = Annotated[int | None, _flag("Expert parallelism, within dp.", _SPLIT)]
Chunks = Annotated[
    int | None, _flag("Model chunks per stage; above 1 the pipeline interleaves.", _SPLIT)
]
Microbatches = Annotated[int | None, _flag("Microbatches per step.", _SPLIT)]
Sharding = Annotated[str | None, _flag("Of gradients and parameters.", _SPLIT, "ddp|zero1|fsdp")]
Faults = Annotated[
    list[str] | None,
    _flag("What goes wrong; may be given repeatedly.", _TROUBLE, "NAME:KEY=VALUE,…"),
]
ListFaults = Annotated[
    bool, typer.Option("--list-faults", help="Explain every fault and its keys, and stop.",
                       rich_help_panel=_TROUBLE),
]  # fmt: skip
ListCases = Annotated[
    bool, typer.Option("--list-cases", help="Tell every case and its faults, and stop.",
                       rich_help_panel=_TROUBLE),
]  # fmt: skip


def asked_for(
    file: Path | None, case: str, flags: Mapping[str, Any], dp: int | None, faults: Sequence[str]
) -> Scenario:  # fmt: skip
    """A file or a case, the flags over it by key of a scenario file, and the faults of both.

    Raises:
        SourceError: the file cannot be read.
        UsageError: it makes no scenario, or the flags do not fit it.
    """
    from stepscope.simulate.parse import from_values, parse_fault

    if case and file is not None:
        raise UsageError("a scenario is a FILE or a --case, not both")
    values = _over(_of_file(file) if file is not None else _of_case(case), flags)
    scenario = from_values(values if dp is None else _with_dp(values, dp))
    if dp is not None and scenario.dp != dp:
        raise UsageError(f"dp={dp} does not fit: {scenario.ranks} ranks, of which tp x cp x pp "
                         f"leave dp={scenario.dp}")  # fmt: skip
    return replace(scenario, faults=(*scenario.faults, *map(parse_fault, faults)))


def named(scenario: Scenario, out: str) -> Scenario:
    """Called like the folder that it is written to, unless it has a name."""
    if scenario.name != type(scenario).name:
        return scenario
    return replace(scenario, name=out.rstrip("/").rpartition("/")[2] or scenario.name)


def _over(values: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The values with all flags that were given, section by section."""
    given = _given(flags)
    sections = {key: {**values[key], **value} for key, value in given.items()
                if isinstance(value, dict) and isinstance(values.get(key), Mapping)}  # fmt: skip
    return {**values, **given, **sections}


def _given(flags: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: _given(one) if isinstance(one, Mapping) else one for key, one in flags.items()}
    return {key: value for key, value in found.items() if value not in (None, {})}


def _of_file(file: Path) -> Mapping[str, Any]:
    from stepscope.simulate.parse import read_toml

    return read_toml(_text(file))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise SourceError(f"cannot read the scenario {file}: {why}") from error


def _of_case(case: str) -> Mapping[str, Any]:
    from stepscope.simulate.cases import case_values

    return case_values(case) if case else {}


def _with_dp(values: Mapping[str, Any], dp: int) -> Mapping[str, Any]:
    """Where only data parallelism is given, there is no other."""
    asked = {"tp": 1, "pp": 1, **values.get("parallelism", {})}
    ranks = dp * asked["tp"] * asked["pp"] * asked.get("cp", 1)
    return {"ranks": ranks, **values, "parallelism": asked}
