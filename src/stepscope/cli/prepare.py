"""`stepscope prepare`: compiles the native hooks that `stepscope run` loads into ranks."""

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
  (when building an image; set the same `STEPSCOPE_CACHE` where training runs)
"""


def register(app: typer.Typer) -> None:
    app.command("prepare", epilog=_EXAMPLES)(prepare)


def prepare(
    python: Annotated[
        str, typer.Option(metavar="PATH", help="The Python interpreter of the training job.")
    ] = sys.executable,
) -> None:
    """Compile the native torch.distributed hooks ahead of time.

    `stepscope run` compiles them itself on first use with a version of torch, which takes 10 to
    20 seconds. Compile them beforehand if the hosts have no C++ compiler, or if many of them start
    at once. Without native hooks, collectives are recorded from Python at about 0.1 ms each.
    """
    from stepscope.collect.native import build

    torch = build.torch_folder(python)
    if torch is None:
        raise UsageError(f"{python} cannot find torch; name another interpreter with --python")
    try:
        print(build.build(torch))
    except build.BuildError as error:
        raise UsageError(f"not compiled: {error}") from error


def prepare_for(command: Sequence[str], env: Mapping[str, str]) -> None:
    """Compiles for the torch that a command will use; if that fails, training runs without."""
    from stepscope.collect.native import build

    if not build.is_wanted():
        return
    torch = build.torch_folder(interpreter(command, env))
    if torch is None:
        return
    try:
        if not build.library(torch).exists():
            exits.print_stderr(
                "compiling hooks for this version of torch, once; takes 10 to 20 seconds"
            )
        build.build(torch)
    except (build.BuildError, OSError) as error:
        exits.print_stderr(f"collectives will be recorded from Python, at 0.1 ms each: {error}")


def interpreter(command: Sequence[str], env: Mapping[str, str]) -> str:
    """The Python of a command: its first word that is a Python or a Python script; else ours."""
    for word in command:
        found = shutil.which(word, path=env.get("PATH"))
        if word.endswith(".py"):
            break
        if found is None:
            continue
        if Path(found).name.startswith("python"):
            return found
        named = _shebang_python(Path(found))
        python = shutil.which(named, path=env.get("PATH")) if named else None
        if python is not None:
            return python
    return sys.executable


def _shebang_python(script: Path) -> str | None:
    """The Python in a script's first line: `#!/venv/bin/python`, `#!/usr/bin/env python3`."""
    try:
        with script.open("rb") as file:
            line = os.fsdecode(file.readline(512))
    except OSError:
        return None
    words = line.removeprefix("#!").split() if line.startswith("#!") else []
    pythons = [word for word in words if Path(word).name.startswith("python")]
    return pythons[0] if pythons else None
