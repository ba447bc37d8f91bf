"""Finds PyTorch profiler traces, and the ranks in their names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from stepscope.errors import SourceError
from stepscope.formats.contents import Contents
from stepscope.formats.walking import files_below, has_contents

_LOOK_BYTES = 1 << 16
SUFFIXES = (".json", ".json.gz")

# Patterns are compiled at their first use: most reads need none of them.
_BEGINS = rb"\s*(?:\{|\[\s*\{)"
_TRACE = rb'"traceEvents"\s*:|"ph"\s*:'
_KINETO = (
    rb'"deviceProperties"|"distributedInfo"|"baseTimeNanoseconds"|"PyTorch Profiler|"ProfilerStep#'
    rb'|"External id"|"Ev Idx"|"cat"\s*:\s*"(?:cpu_op|cuda_runtime|user_annotation|python_function'
    rb'|gpu_memcpy|gpu_memset|kernel|Kernel|Operator|Runtime|Memcpy|Memset)"'
)
"""Keys and categories that no other writer of Chrome traces uses."""
_RANK = r"(?i)rank[-_.= ]?(\d{1,7})(?!\d)"
_USUAL = r"(?i)rank[-_.= ]?\d|\.pt\.trace\.json"
_TIME = r"\.\d{12,19}(?:\.pt\.trace)?$"
"""The suffix of torch's `tensorboard_trace_handler`: milliseconds; since 2.1 nanoseconds."""
_NUMBER = r"\d{1,7}(?!\d)"


def trace_files(source: Path) -> list[Path]:
    """Files below a folder that may be traces, or the file itself.

    Raises:
        SourceError: there are none.
    """
    if source.is_file():
        return [source]
    try:
        next(source.iterdir(), None)
    except OSError as cause:
        raise SourceError(f"cannot read {source}: {cause.strerror}") from None
    found = sorted(_below(source))
    if not found:
        raise SourceError(f"no traces in {source}: expected one *.json or *.json.gz per rank")
    return found


def _below(folder: Path) -> Iterator[Path]:
    """JSON files, without hidden ones."""
    return (path for path in files_below(folder) if path.name.endswith(SUFFIXES))


def display_name(path: Path, source: Path) -> str:
    """A file's name in messages: its path below the source folder."""
    return path.name if path == source else path.relative_to(source).as_posix()


def recognise(path: Path) -> bool:
    """Whether a file, or any file of a folder, is a PyTorch profiler trace, by its first bytes."""
    try:
        return any(_recognised(file) for file in trace_files(path))
    except (SourceError, OSError):
        return False


def named_so(path: Path) -> bool:
    """Whether a file, or any file of a folder, has a usual name of a trace."""
    try:
        return any(re.search(_USUAL, file.name) for file in trace_files(path))
    except SourceError:
        return False


def _recognised(path: Path) -> bool:
    if not has_contents(path):
        return False
    text = next(iter(Contents(path)), b"")[:_LOOK_BYTES]
    if not re.match(_BEGINS, text):
        return False
    # the header of a trace may be longer than the bytes checked
    return re.search(_KINETO, text) is not None and (
        re.search(_TRACE, text) is not None or b'"schemaVersion"' in text
    )


def process_of(name: str) -> str:
    """The common prefix of the names of all traces of one process.

    >>> process_of("log/host7_4711.1712195495502094565.pt.trace.json.gz")
    'log/host7_4711'
    """
    name = name.removesuffix(".gz").removesuffix(".json")
    return re.sub(_TIME, "", name)


def ranks_by_name(names: Sequence[str]) -> list[int | None]:
    """The rank in each name: after the word rank, else the number that enumerates the files.

    >>> ranks_by_name(["node-17_rank3.pt.trace", "node-18_rank12.pt.trace"])
    [3, 12]
    >>> ranks_by_name(["gpu4-0-run7", "gpu4-1-run7"])
    [0, 1]
    """
    numbers = [re.findall(_RANK, name) for name in names]
    if all(numbers):
        return [int(one[-1]) for one in numbers]
    return _counting(names)


def _counting(names: Sequence[str]) -> list[int | None]:
    """The numbers at the position in the names, from either end, where they are 0, 1, 2 …"""
    numbers = [[int(digits) for digits in re.findall(_NUMBER, name)] for name in names]
    places = min(map(len, numbers), default=0)
    for at in (*range(-1, -places - 1, -1), *range(places)):
        column = [row[at] for row in numbers]
        if sorted(column) == list(range(len(names))) and (len(names) > 1 or len(numbers[0]) == 1):
            return list(column)
    return [None] * len(names)
