"""Builds the scenario of `stepscope simulate` from a file or a case, and flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.errors import SourceError, UsageError

if TYPE_CHECKING:
    from stepscope.simulate import Scenario

_JOB, _SPLIT, _TROUBLE = "The job", "Parallelism", "Faults"

File = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="A scenario in TOML; flags override it.")
]


def _flag(help: str, panel: str, metavar: str | None = None) -> Any:
    return typer.Option(help=help, metavar=metavar, rich_help_panel=panel)


Case = Annotated[str, _flag("A job described in a paper; flags override it.", _JOB, "NAME")]
Ranks = Annotated[int | None, _flag("Number of GPUs [default: 64].", _JOB)]
Steps = Annotated[int | None, _flag("Training steps [default: 100].", _JOB)]
Seed = Annotated[int | None, _flag("Random seed; equal seeds give equal jobs.", _JOB)]
Workload = Annotated[
    str | None,
    _flag("Kind of model; variable: inputs of different lengths.", _JOB, "dense|moe|variable"),
]
Detail = Annotated[
    str | None, _flag("How much detail to record per rank.", _JOB, "auto|full|normal|brief")
]
Dp = Annotated[
    int | None, _flag("Data parallelism [default: the remaining factor of RANKS].", _SPLIT)
]
Tp = Annotated[int | None, _flag("Tensor parallelism.", _SPLIT)]
Pp = Annotated[int | None, _flag("Pipeline stages.", _SPLIT)]
Cp = Annotated[int | None, _flag("Context parallelism.", _SPLIT)]
Ep = Annotated[int | None, _flag("Expert parallelism, within dp.", _SPLIT)]
Chunks = Annotated[
    int | None, _flag("Model chunks per pipeline stage; more than 1: interleaved schedule.", _SPLIT)
]
Microbatches = Annotated[int | None, _flag("Microbatches per step.", _SPLIT)]
Sharding = Annotated[
    str | None, _flag("Sharding of gradients and parameters.", _SPLIT, "ddp|zero1|fsdp")
]
Faults = Annotated[
    list[str] | None,
    _flag("A fault to inject; may be repeated.", _TROUBLE, "NAME:KEY=VALUE,…"),
]
ListFaults = Annotated[
    bool, typer.Option("--list-faults", help="List all faults and their keys, and exit.",
                       rich_help_panel=_TROUBLE),
]  # fmt: skip
ListCases = Annotated[
    bool, typer.Option("--list-cases", help="List all cases and their faults, and exit.",
                       rich_help_panel=_TROUBLE),
]  # fmt: skip


def scenario_from(
    file: Path | None, case: str, flags: Mapping[str, Any], dp: int | None, faults: Sequence[str]
) -> Scenario:  # fmt: skip
    """Combines a file or a case with the flags that override it; faults of both are kept.

    `flags` are nested by the keys of a scenario file.

    Raises:
        SourceError: the file cannot be read.
        UsageError: the file or the flags describe no valid scenario.
    """
    from stepscope.simulate.parse import from_values, parse_fault

    if case and file is not None:
        raise UsageError("give either FILE or --case, not both")
    values = _override(_of_file(file) if file is not None else _of_case(case), flags)
    scenario = from_values(values if dp is None else _with_dp(values, dp))
    if dp is not None and scenario.dp != dp:
        raise UsageError(f"--dp {dp} does not match: {scenario.ranks} ranks divided by "
                         f"tp x cp x pp leave dp={scenario.dp}")  # fmt: skip
    return replace(scenario, faults=(*scenario.faults, *map(parse_fault, faults)))


def named_after(scenario: Scenario, out: str) -> Scenario:
    """Names a scenario that has no name after its output folder."""
    if scenario.name != type(scenario).name:
        return scenario
    return replace(scenario, name=out.rstrip("/").rpartition("/")[2] or scenario.name)


def _override(values: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The values overridden by the flags that were given, section by section."""
    given = _given(flags)
    sections = {key: {**values[key], **value} for key, value in given.items()
                if isinstance(value, dict) and isinstance(values.get(key), Mapping)}  # fmt: skip
    return {**values, **given, **sections}


def _given(flags: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: _given(v) if isinstance(v, Mapping) else v for key, v in flags.items()}
    return {key: value for key, value in found.items() if value not in (None, {})}


def _of_file(file: Path) -> Mapping[str, Any]:
    from stepscope.simulate.parse import read_toml

    return read_toml(_text(file))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        raise SourceError(f"cannot read the scenario {file}: {why}") from error


def _of_case(case: str) -> Mapping[str, Any]:
    from stepscope.simulate.cases import case_values

    return case_values(case) if case else {}


def _with_dp(values: Mapping[str, Any], dp: int) -> Mapping[str, Any]:
    """Sets dp; tensor and pipeline parallelism default to 1."""
    split = {"tp": 1, "pp": 1, **values.get("parallelism", {})}
    ranks = dp * split["tp"] * split["pp"] * split.get("cp", 1)
    return {"ranks": ranks, **values, "parallelism": split}
