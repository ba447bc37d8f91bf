"""Finds dump files, their ranks and their contents.

Names in use: `comm_lib_trace_rank_N`, `nccl_trace_rank_N`, `nccl_trace_rank_HOST_N`, torchtitan's
`comm_traces/rank_N`; with any prefix and suffix, gzipped or not. So the rank is the last number in
the name, and dumps are recognised by their first bytes.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from stepscope.errors import FormatError, SourceError
from stepscope.formats.flight_recorder.plain import loads
from stepscope.formats.walking import files_below, has_contents

MOST_BYTES = 64 << 20
"""Most uncompressed bytes of a dump: 20,000 entries with stacks take a quarter of it."""
MOST_VALUES = 10_000_000
"""Most brackets and commas of a JSON dump: the values of 100,000 entries."""
HEAD_BYTES = 1 << 16
LOOKED_AT = 64
"""How many files of a folder are checked to recognise it."""
MARKS = (b"pg_config", b"profiling_name", b"collective_seq_id", b"comm_lib_version",
         b"nccl_version")  # fmt: skip
"""Keys of the recorder; some are also in the header of profiler traces, which lists groups."""
_PROFILED = (b'"traceEvents"', b'"distributedInfo"', b'"deviceProperties"')
"""Keys of profiler traces only."""
NAMED = re.compile(r"(?:trace|dump|comm|nccl|gloo|fr|flight)\w*rank.*\d$|^rank[-_]?\d+$")
"""Usual names of dumps: by these, empty or damaged files count as dumps."""
SUFFIXES = (".gz", ".json", ".pkl", ".pickle", ".bin", ".pt", ".dump", ".trace")
_HOST = re.compile(r"rank[-_](?P<host>.*[A-Za-z].*)[-_]\d+$")


@dataclass(frozen=True)
class Found:
    """A file that is a dump, or should be one by its name."""

    path: Path
    rank: int | None
    host: str | None


def find(folder: Path) -> tuple[list[Found], str | None]:
    """The dumps below a folder, or the file itself; and the name of the first other file."""
    found: list[Found] = []
    other = None
    for path in walk(folder):
        if looks_like_dump(path):
            found.append(Found(path, rank_of(path), host_of(path)))
        elif other is None:
            other = path.name
    return found, other


def walk(folder: Path) -> Iterator[Path]:
    """The files below a folder, sorted by name, without hidden ones."""
    if folder.is_file():
        yield folder
        return
    yield from files_below(folder)


def recognise(path: Path) -> bool:
    """Whether some of the first files below a path are dumps; reads only their first bytes."""
    try:
        return any(_has_marks(head_of(one)) for one in islice(walk(path), LOOKED_AT))
    except (OSError, SourceError):
        return False


def looks_like_dump(path: Path) -> bool:
    head = head_of(path)
    if _has_marks(head):
        return True
    return not _foreign(head) and NAMED.search(stem(path)) is not None


def _foreign(head: bytes) -> bool:
    """Whether it is JSON of another tool, regardless of its name."""
    first = head.lstrip()[:1]
    return first == b"[" or (first == b"{" and (len(head) == HEAD_BYTES or _is_profiled(head)))


def _has_marks(head: bytes) -> bool:
    starts_so = head[:1] in (b"\x80", b"{", b"(", b"}") and not _is_profiled(head)
    return starts_so and any(mark in head for mark in MARKS)


def _is_profiled(head: bytes) -> bool:
    return head[:1] == b"{" and any(mark in head for mark in _PROFILED)


def head_of(path: Path) -> bytes:
    """The first bytes, uncompressed; empty if they cannot be read."""
    if not has_contents(path):
        return b""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
        if head[:2] == b"\x1f\x8b":
            return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, HEAD_BYTES)
    except (OSError, zlib.error):
        return b""
    return head


def size_of(path: Path) -> int:
    """The size of the file on disk; 0 if it cannot be read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def stem(path: Path) -> str:
    """The name without the suffixes we know."""
    name = path.name
    while any(name.endswith(suffix) for suffix in SUFFIXES):
        name = name.rpartition(".")[0]
    return name


def rank_of(path: Path) -> int | None:
    """The last number in the file's name, else in the folder's."""
    for text in (stem(path), path.parent.name):
        numbers = re.findall(r"\d+", text)
        if numbers and len(numbers[-1]) < 8:
            return int(numbers[-1])
    return None


def host_of(path: Path) -> str | None:
    """`host-17` of `nccl_trace_rank_host-17_5`."""
    match = _HOST.search(stem(path))
    return match["host"] if match else None


def load(path: Path) -> Any:
    """The plain data in a dump file.

    Raises:
        FormatError: empty, cut off, too large, or neither pickle nor JSON.
        SourceError: it cannot be read.
    """
    data = _bytes(path) if has_contents(path) else b""
    if not data:
        raise FormatError("empty")
    return _json(data) if data.lstrip()[:1] in (b"{", b"[") else loads(data)


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if data[:2] == b"\x1f\x8b":
            with gzip.open(path, "rb") as file:
                data = file.read(MOST_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FormatError(f"damaged gzip: {error}") from error
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise FormatError(f"larger than {MOST_BYTES >> 20} MiB, too large for a dump")
    return data


def _json(data: bytes) -> Any:
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > MOST_VALUES:
        raise FormatError("more values than any dump has")
    try:
        return json.loads(data)
    except RecursionError as error:
        raise FormatError("JSON nested deeper than any dump") from error
    except ValueError as error:
        raise FormatError(f"damaged JSON: {error}") from error
