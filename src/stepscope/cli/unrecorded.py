"""Whether a command hides our start-up from Python, so that nothing can be recorded.

`stepscope run` puts a `sitecustomize` in front of PYTHONPATH. Only what the command line shows is
found; a shell script that sets PYTHONPATH is not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_WHY = {
    "I": "ignores PYTHONPATH",
    "E": "ignores PYTHONPATH",
    "S": "does not import sitecustomize",
}
_TAKES_A_WORD = "WX"
_ENDS_OPTIONS = "cm"


def why_unrecorded(command: Sequence[str]) -> str | None:
    """Why nothing can be recorded, in one line; None if the command shows no reason."""
    for at, word in enumerate(command):
        if word.startswith("PYTHONPATH="):
            return (
                "nothing can be recorded: the command sets PYTHONPATH, which hides "
                "stepscope's start-up; set it before `stepscope run`"
            )
        if Path(word).name.startswith("python"):
            return _why_not(command[at + 1 :])
        if word.endswith(".py"):
            return None
    return None


def _why_not(words: Sequence[str]) -> str | None:
    """Looks through an interpreter's options, such as `-u`, `-Iu`, `-X dev`."""
    skip = False
    for word in words:
        if skip:
            skip = False
            continue
        if not word.startswith("-") or word == "-" or word.startswith("--"):
            return None
        for letter in word[1:]:
            if letter in _WHY:
                return f"nothing can be recorded: `python -{letter}` {_WHY[letter]}; leave it out"
            if letter in _ENDS_OPTIONS:
                return None
            if letter in _TAKES_A_WORD:
                skip = word.endswith(letter)
                break
    return None
