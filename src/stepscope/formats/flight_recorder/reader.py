"""A folder of dumps as a Window: the job, the operators of its ranks, their last stacks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import FormatError, SourceError
from stepscope.formats.flight_recorder import files
from stepscope.formats.flight_recorder.assemble import assemble
from stepscope.formats.flight_recorder.dump import Dump, parse
from stepscope.window import Window


@dataclass(frozen=True)
class Dumps:
    """What a folder of dumps tells, and one line per file that could not be used."""

    window: Window
    problems: tuple[str, ...] = ()


def recognise(path: Path) -> bool:
    """Whether there are Flight Recorder dumps at a path. Cheap: reads beginnings of files only."""
    return files.recognise(path)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector, which looks through millions of new objects for circles."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@_uncollected()
def read(folder: Path) -> Dumps:
    """All dumps below a folder, or the one that a file is.

    Raises:
        SourceError: there is none, none can be used, or two are of one rank.
    """
    found, other = files.find(folder)
    if not found:
        seen = f"found {other}" if other else "it is empty" if folder.exists() else "no such folder"
        raise SourceError(f"no Flight Recorder dump in {folder}: {seen}")
    dumps: dict[int, Dump] = {}
    where: dict[int, files.Found] = {}
    problems: list[str] = []
    for one in found:
        try:
            dump = parse(files.load(one.path))
            rank = _rank(dump, one)
        except SourceError as error:
            problems.append(f"{one.path}: {error}")
            continue
        if rank in dumps:
            raise FormatError(
                f"rank {rank} has two dumps, {where[rank].path} and {one.path}: keep one of them"
            )
        dumps[rank], where[rank] = dump, one
    if not dumps:
        more = f" (and {len(problems) - 1} more files)" if len(problems) > 1 else ""
        raise FormatError(f"no usable Flight Recorder dump: {problems[0]}{more}")
    name = (folder if folder.is_dir() else folder.parent).resolve().name
    return Dumps(assemble(name or "dumps", dumps, where), tuple(problems))


def _rank(dump: Dump, one: files.Found) -> int:
    rank = dump.rank if dump.rank is not None else one.rank
    if rank is None:
        raise FormatError("names no rank: put its number at the end of the file's name")
    return rank
