"""`stepscope run --native`: optional recording of GPU kernels, NCCL events, phases and modules.

Sets variables that make CUDA and NCCL load our libraries into the ranks, or that configure our
Python hooks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

import stepscope
from stepscope.cli import exits
from stepscope.errors import UsageError

LIBRARIES: Mapping[str, tuple[str, str]] = {
    "cupti": ("CUDA_INJECTION64_PATH", "libstepscope_cupti.so"),
    "nccl": ("NCCL_PROFILER_PLUGIN", "libnccl-profiler-stepscope.so"),
}
"""For each name: the variable that makes CUDA or NCCL load a library, and the library."""
SWITCHES: Mapping[str, tuple[str, str]] = {
    "phases": ("STEPSCOPE_PHASES", "device"),
    "modules": ("STEPSCOPE_MODULES", "32"),
}
"""Names that only configure our hooks: the variable, and its value. A module costs 28 µs in a
sampled step (`benchmarks/parts.py`): 64 of them in one step of 32 cost 0.1 % of steps of 50 ms."""
FOLDER = Path(stepscope.__file__).parent / "lib"

Native = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Record more: a comma-separated list of cupti (kernels), nccl (collectives), phases "
        "and modules.",
    ),
]


def variables(requested: str | None, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables to set for a command; a library that the user has set is left alone.

    Raises:
        UsageError: a name is unknown, or its library was not built.
    """
    found: dict[str, str] = {}
    names = dict.fromkeys(filter(None, (requested or "").split(",")))
    for variable, value in (SWITCHES[name] for name in names if name in SWITCHES):
        found[variable] = env.get(variable) or value
    for name in (name for name in names if name not in SWITCHES):
        variable, path = _library(name)
        other = env.get(variable)
        if other and other != str(path):
            exits.print_stderr(
                f"--native {name} has no effect: {variable} is already set to {other}"
            )
        else:
            found[variable] = str(path)
    return found


def _library(name: str) -> tuple[str, Path]:
    if name not in LIBRARIES:
        known = ", ".join((*LIBRARIES, *SWITCHES))
        raise UsageError(f"unknown --native {name!r}; known: {known}")
    variable, file = LIBRARIES[name]
    path = FOLDER / file
    if not path.exists():
        raise UsageError(
            f"--native {name} needs {path}, which was not built; was a C++ compiler installed?"
        )
    return variable, path
