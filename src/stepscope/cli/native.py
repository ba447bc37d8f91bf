"""`stepscope run --native`: what is recorded of GPUs, beside what every job is recorded by.

Libraries that CUDA and NCCL load into ranks by themselves, and switches of the hooks.
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
"""What may be asked for: the variable that names a library, and the library."""
SWITCHES: Mapping[str, tuple[str, str]] = {
    "phases": ("STEPSCOPE_PHASES", "device"),
    "modules": ("STEPSCOPE_MODULES", "32"),
}
"""What else: the variable, and its value. A module costs 28 µs in a sampled step
(`benchmarks/parts.py`): 64 of them in one step of 32 cost 0.1 % of steps of 50 ms."""
FOLDER = Path(stepscope.__file__).parent / "lib"

Native = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Record more: cupti (kernels), nccl (collectives), phases, modules; or cupti,phases.",
    ),
]


def variables(wanted: str | None, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What to set for a command. A library of somebody else's stays where it is named already.

    Raises:
        UsageError: there is no such library, or it was not built.
    """
    found: dict[str, str] = {}
    names = dict.fromkeys(filter(None, (wanted or "").split(",")))
    for variable, value in (SWITCHES[name] for name in names if name in SWITCHES):
        found[variable] = env.get(variable) or value
    for name in (name for name in names if name not in SWITCHES):
        variable, path = _library(name)
        other = env.get(variable)
        if other and other != str(path):
            exits.complain(f"--native {name} does nothing: {variable} is {other} already")
        else:
            found[variable] = str(path)
    return found


def _library(name: str) -> tuple[str, Path]:
    if name not in LIBRARIES:
        known = ", ".join((*LIBRARIES, *SWITCHES))
        raise UsageError(f"--native knows {known}, not {name!r}")
    variable, file = LIBRARIES[name]
    path = FOLDER / file
    if not path.exists():
        raise UsageError(
            f"--native {name} needs {path}, which was not built: no C++ compiler then?"
        )
    return variable, path
