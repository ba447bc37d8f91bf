"""Reads a folder of dumps into a Window: the job, its ranks' operators and their last stacks."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import FormatError, SourceError
from stepscope.formats.collector import uncollected
from stepscope.formats.flight_recorder import files
from stepscope.formats.flight_recorder.assemble import assemble
from stepscope.formats.flight_recorder.dump import Dump, parse
from stepscope.window import Window

logger = logging.getLogger(__name__)

PARALLEL_BYTES = 8 << 20
"""Larger input takes one process a few seconds; starting others takes one."""
MOST_WORKERS = 16
CHUNK = 4
NO_RANK = "has no rank: put its number at the end of the file's name"


@dataclass(frozen=True)
class Dumps:
    """The Window of a folder of dumps, and one line per file that could not be used."""

    window: Window
    problems: tuple[str, ...] = ()


def recognise(path: Path) -> bool:
    """Whether there are Flight Recorder dumps at a path. Cheap: reads only first bytes of files."""
    return files.recognise(path)


@uncollected()
def read(folder: Path) -> Dumps:
    """Reads all dumps below a folder, or a single file.

    Raises:
        SourceError: there are none, none can be used, or two are of one rank.
    """
    found, other = files.find(folder)
    if not found:
        seen = f"found {other}" if other else "it is empty" if folder.exists() else "no such folder"
        raise SourceError(f"no Flight Recorder dump in {folder}: {seen}")
    dumps: dict[int, Dump] = {}
    where: dict[int, files.Found] = {}
    problems: list[str] = []
    for one, dump in zip(found, _parsed([one.path for one in found]), strict=True):
        rank = None if isinstance(dump, str) else dump.rank if dump.rank is not None else one.rank
        if isinstance(dump, str) or rank is None:
            problems.append(f"{one.path}: {dump if isinstance(dump, str) else NO_RANK}")
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


def _parsed(paths: list[Path]) -> list[Dump | str]:
    """Every file's dump, or what is wrong with it; uses several processes for large input."""
    workers = min(os.cpu_count() or 1, MOST_WORKERS, len(paths))
    if workers > 1 and sum(files.size_of(path) for path in paths) >= PARALLEL_BYTES:
        try:
            return _in_processes(paths, workers)
        except (RuntimeError, OSError) as cause:  # a broken pool is a RuntimeError
            logger.warning("reading dumps in one process: %s", cause)
    return [_parse(path) for path in paths]


def _in_processes(paths: list[Path], workers: int) -> list[Dump | str]:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    context = multiprocessing.get_context("spawn")  # forking copies locks that threads may hold
    with ProcessPoolExecutor(workers, context) as pool:
        return list(pool.map(_parse, paths, chunksize=CHUNK))


@uncollected()
def _parse(path: Path) -> Dump | str:
    try:
        return parse(files.load(path))
    except SourceError as error:
        return str(error)
