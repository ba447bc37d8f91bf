"""Writes a diagnosis as JSON to stdout, or as an HTML page to a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.diagnose.finding import Diagnosis


def print_json(diagnosis: Diagnosis, indent: int | None = None) -> None:
    from stepscope.report.json import to_json

    print(json.dumps(to_json(diagnosis), indent=indent, allow_nan=False), flush=True)


def check_writable(path: Path | None) -> None:
    """Fails before minutes of reading instead of after them.

    Raises:
        UsageError: no file can be written at this path.
    """
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder; name a file in it")
    if not os.access(path.parent, os.W_OK):
        why = "permission denied" if path.parent.is_dir() else "no such folder"
        raise UsageError(f"cannot write {path}: {path.parent}: {why}; name a file elsewhere")


def write_text(text: str, path: Path) -> None:
    """Replaces a regular file atomically.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe or a device
            path.write_text(text, encoding="utf-8")
            return
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def write_html(diagnosis: Diagnosis, path: Path) -> None:
    """Replaces a regular file atomically: readers get the old page or the new one.

    Raises:
        UsageError: the file cannot be written.
    """
    from stepscope.report.html import render_html

    write_text(render_html(diagnosis), path)
