"""Files of what `stepscope evaluate` trains or fits: written anew, with the next version."""

from __future__ import annotations

import json
from pathlib import Path

from stepscope.errors import FormatError, UsageError


def next_version(file: Path, otherwise: str) -> int:
    """The version after that of the file which is replaced; 1: there is none.

    Args:
        otherwise: what a file of other content is said to be: `is no forest`.

    Raises:
        FormatError: the file is something else, and is not overwritten.
    """
    if not file.exists():
        return 1
    try:
        return int(json.loads(file.read_text(encoding="utf-8"))["version"]) + 1
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{file} exists and {otherwise}: name another file") from error


def write(file: Path, text: str) -> None:
    """Writes the file.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from error
