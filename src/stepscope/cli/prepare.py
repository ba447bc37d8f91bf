"""`stepscope prepare`: compiles what `stepscope run` loads into training processes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli import exits
from stepscope.errors import UsageError

_EXAMPLES = """Examples:

- `stepscope prepare`

- `STEPSCOPE_CACHE=/opt/stepscope stepscope prepare --python /opt/venv/bin/python`
  (while an image is built; set the same `STEPSCOPE_CACHE` where training runs)
"""


def register(app: typer.Typer) -> None:
    app.command("prepare", epilog=_EXAMPLES)(prepare)


def prepare(
    python: Annotated[
        str, typer.Option(metavar="PATH", help="The Python that training runs in.")
    ] = sys.executable,
) -> None:
    """Compile, once, what watches torch.distributed inside a training process.

    `stepscope run` does so by itself when it meets a torch for the first time, which takes 10 to
    20 seconds. Do it beforehand where hosts have no C++ compiler, or where many start at once.
    Without it training is watched all the same, from Python, at about 0.1 ms per collective.
    """
    from stepscope.collect.native import build

    torch = build.torch_folder(python)
    if torch is None:
        raise UsageError(f"{python} finds no torch; name another interpreter with --python")
    try:
        print(build.build(torch))
    except build.BuildError as error:
        raise UsageError(f"not compiled: {error}") from error


def prepare_for(command: Sequence[str], env: Mapping[str, str]) -> None:
    """Compiles for the torch that a command will use; training goes on without where it fails."""
    from stepscope.collect.native import build

    if not build.is_wanted():
        return
    torch = build.torch_folder(interpreter(command, env))
    if torch is None:
        return
    try:
        if not build.library(torch).exists():
            exits.complain("compiling for this torch, once: 10 to 20 seconds")
        build.build(torch)
    except (build.BuildError, OSError) as error:
        exits.complain(f"collectives will be watched from Python, 0.1 ms each: {error}")


def interpreter(command: Sequence[str], env: Mapping[str, str]) -> str:
    """The Python of a command: the first word that is one, or a script of one; else ours."""
    for word in command:
        found = shutil.which(word, path=env.get("PATH"))
        if word.endswith(".py"):
            break
        if found is None:
            continue
        if Path(found).name.startswith("python"):
            return found
        named = _named_in(Path(found))
        python = shutil.which(named, path=env.get("PATH")) if named else None
        if python is not None:
            return python
    return sys.executable


def _named_in(script: Path) -> str | None:
    """The Python in a script's first line: `#!/venv/bin/python`, `#!/usr/bin/env python3`."""
    try:
        with script.open("rb") as file:
            line = os.fsdecode(file.readline(512))
    except OSError:
        return None
    words = line.removeprefix("#!").split() if line.startswith("#!") else []
    pythons = [word for word in words if Path(word).name.startswith("python")]
    return pythons[0] if pythons else None
