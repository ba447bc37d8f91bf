"""Reads a folder of traces, or a single one, into a window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepscope.errors import FormatError
from stepscope.formats.perfetto.columns import together
from stepscope.formats.perfetto.communication import comm_ops
from stepscope.formats.perfetto.files import begins_so, trace_files
from stepscope.formats.perfetto.gathered import Gathered
from stepscope.formats.perfetto.job import described, job_of
from stepscope.formats.perfetto.ranks import tables_of
from stepscope.formats.perfetto.trace import read_file
from stepscope.formats.perfetto.tracks import Track, Tracks, per_owner, tracks_of
from stepscope.perfetto.tracks import STEPS
from stepscope.trace import Job
from stepscope.window import Table, Window

Progress = Callable[[int, int], None]
"""Called with the bytes read so far and the bytes of all files."""

NOT_OURS = "it is empty, damaged or was not written by stepscope; left out"


@dataclass(frozen=True)
class Reading:
    """The window, and one line for each problem."""

    window: Window
    problems: tuple[str, ...] = ()


def read(source: Path, *, progress: Progress | None = None) -> Reading:
    """Reads traces that stepscope wrote: those below a folder, or a single one.

    Raises:
        SourceError: nothing can be read, there is nothing of a rank in it, or two files contradict
            each other.
    """
    files = trace_files(source)
    gathered, problems = _gathered(source, files, progress)
    tracks = tracks_of(gathered)
    try:
        job = described(gathered.jobs)
    except FormatError as error:
        raise FormatError(f"{source}: {error}") from None
    window = _window(source, tracks.tracks, job, [_shown(file, source) for file in files])
    if not window.ranks:
        more = f": {problems[0]}" if problems else ""
        raise FormatError(f"{source} has no Perfetto trace of any rank that can be read{more}")
    return Reading(window, (*problems, *_left_out(source, tracks)))


def _gathered(
    source: Path, files: Sequence[Path], progress: Progress | None
) -> tuple[Gathered, list[str]]:
    """The rows of all files, and what could not be read."""
    gathered, problems = Gathered(), []
    total, done = sum(path.stat().st_size for path in files), 0

    def advance(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(done, total)

    for number, path in enumerate(files):
        found = [NOT_OURS]
        if begins_so(path):
            found = read_file(path, number, gathered, advance)
        problems += [f"{_shown(path, source)}: {problem}" for problem in found]
    return gathered, problems


def _shown(path: Path, source: Path) -> str:
    """A file's name in messages: its path below the source folder."""
    return path.name if path == source else path.relative_to(source).as_posix()


def _left_out(source: Path, tracks: Tracks) -> list[str]:
    counts = (
        (tracks.copies, "are in several of the files and count once"),
        (tracks.of_unknown, "belong to no track that is described, and are left out"),
        (tracks.impossible, "have impossible times, and are left out"),
    )
    return [f"{source.name}: {count} rows {what}" for count, what in counts if count]


def _window(source: Path, tracks: list[Track], job: Job | None, files: Sequence[str]) -> Window:
    found: dict[str, list[Table]] = {}
    owners = per_owner(tracks)
    for owner, own in owners.items():
        for name, rows in tables_of(owner, own):
            found.setdefault(name, []).append(rows)
    _check_same(tracks, files)
    operators = found.pop("comm_ops", None)
    tables = {name: together(parts) for name, parts in found.items()}
    until_ns = 0
    if operators is not None:
        tables["comm_ops"] = comm_ops(operators)
        until_ns = max(int(part.ints("end_ns").max()) for part in operators)
    job = job_of(source, job, list(owners), tables.get("comm_ops"), until_ns)
    return Window(job, {name: table for name, table in tables.items() if len(table)})


def _check_same(tracks: Sequence[Track], files: Sequence[str]) -> None:
    """Checks that the files are of one job on one clock.

    Raises:
        FormatError: two of them have a step of one rank at different times that overlap.
    """
    for track in tracks:
        if track.name != STEPS or track.parent:
            continue
        rows = track.rows
        file, begin, end = (rows.ints(name) for name in ("file", "begin_ns", "end_ns"))
        name = rows.strings("name").codes
        order = np.lexsort((begin, name))
        file, begin, end, name = file[order], begin[order], end[order], name[order]
        clash = (name[1:] == name[:-1]) & (file[1:] != file[:-1]) & (begin[1:] < end[:-1])
        if clash.any():
            at = int(np.argmax(clash))
            one, other = sorted((files[int(file[at])], files[int(file[at + 1])]))
            raise FormatError(
                f"rank {track.owner.rank} has {rows.strings('name').values[int(name[at])]} at "
                f"different times in {one} and {other}: name one of them, or keep one of them"
            )
