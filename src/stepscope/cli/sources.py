"""Opens what a command is pointed at: a job folder, or what other tools left of a job."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from stepscope.cli import terminal
from stepscope.errors import SourceError, UsageError

if TYPE_CHECKING:
    from stepscope.store.history import History
    from stepscope.window import Window

logger = logging.getLogger(__name__)

_TRACE_NAMES = ("*.json", "*.json.gz")
_LISTED = 5


class Source(Protocol):
    """Something that can be read, some of it again and again."""

    problems: list[str]
    version: int
    """Another one whenever `refresh` gives another window."""

    def refresh(self) -> Window: ...

    def read(self) -> Window:
        """For who looks once."""
        ...


@dataclass
class Recording:
    """Files that were read once: nobody adds to them."""

    window: Window
    problems: list[str] = field(default_factory=list)
    version: int = 0

    def refresh(self) -> Window:
        return self.window

    def read(self) -> Window:
        return self.window


def open_source(source: str, history: History | None = None) -> Source:
    """What a command reads: job folders are looked at later, recordings of others are read now.

    Of a job folder no more is kept than a `history`, where one is given.

    Raises:
        SourceError: it is a recording, and cannot be read; or a folder or file of anything else.
        UsageError: nothing is named.
    """
    # numpy's linear algebra starts a thread per core when it is imported; nothing here uses them
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return read_recording(source) or _job(source, history)


def open_window(source: str) -> tuple[Window, list[str]]:
    """Everything in a source, and a line for each thing that had to be left out.

    Raises:
        SourceError: it cannot be read, or is none of what we read.
    """
    opened = open_source(source)
    if isinstance(opened, Recording):
        return opened.window, opened.problems
    with terminal.progress(f"reading {source}"):
        return opened.read(), opened.problems


def read_recording(source: str) -> Recording | None:
    """Profiler traces or Flight Recorder dumps, if that is what a folder or file holds.

    Raises:
        SourceError: that is what it holds, and nothing in it can be used.
        UsageError: nothing is named.
    """
    if not source:
        raise UsageError("no folder was named: the argument is empty")
    path = Path(source)
    if "://" in source or not _exists(path) or holds_jobs(path):
        return None
    reader = _reader_of(path)
    return None if reader is None else reader(path)


def _job(source: str, history: History | None) -> Source:
    from stepscope.store.reader import JobReader

    path = Path(source)
    if "://" in source or not _exists(path):
        return JobReader(source, history)
    if path.is_file():
        raise SourceError(
            f"{source} is neither a PyTorch profiler trace nor a Flight Recorder dump; a job is "
            "named by its folder"
        )
    if (names := _listed(path)) and not holds_jobs(path):
        raise SourceError(
            f"nothing to read in {source}: no job folder, no PyTorch profiler traces (*.json, "
            f"*.json.gz), no Flight Recorder dumps; it holds {names}"
        )
    return JobReader(source, history)


def _listed(path: Path) -> str:
    """The first names in a folder; empty where there are none, or nobody may know."""
    try:
        names = sorted(one.name for one in path.iterdir())
    except OSError:
        return ""
    shown = [name + "/" * (path / name).is_dir() for name in names[:_LISTED]]
    return ", ".join(shown) + (", …" if len(names) > _LISTED else "")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long, or may not be asked for
        return False


def holds_jobs(path: Path) -> bool:
    """Whether it is a job folder, or a store of jobs; nothing else is looked for there."""
    if not path.is_dir():
        return False
    from stepscope.store.location import Location
    from stepscope.store.source import is_job

    try:
        root = Location.parse(str(path))
        folders, files = root.top()
        return is_job(folders, files) or any(is_job(*root.child(one).top()) for one in folders)
    except SourceError:
        return False


def _reader_of(path: Path) -> Callable[[Path], Recording] | None:
    """By what the files say; damaged ones are left to the reader that can best tell what is wrong.

    A hang comes before slowness: where there are dumps as well as traces, the dumps are read.
    """
    from stepscope.formats import flight_recorder, kineto
    from stepscope.formats.flight_recorder.files import find

    if flight_recorder.recognise(path):
        return _read_dumps
    if kineto.recognise(path):
        return _read_traces
    if find(path)[0]:
        return _read_dumps
    named = any(path.match(name) or next(path.glob(name), None) for name in _TRACE_NAMES)
    return _read_traces if named or kineto.named_so(path) else None


def _read_traces(path: Path) -> Recording:
    from stepscope.formats import kineto

    with terminal.byte_progress(f"reading traces of {path.name}") as advance:
        reading = kineto.read(path, progress=advance)
    logger.info("read traces of %s, %d problems", path, len(reading.problems))
    return Recording(reading.window, list(reading.problems))


def _read_dumps(path: Path) -> Recording:
    from stepscope.formats import flight_recorder

    with terminal.progress(f"reading Flight Recorder dumps of {path.name}"):
        dumps = flight_recorder.read(path)
    return Recording(dumps.window, _without_traces(path, dumps.problems))


def _without_traces(path: Path, problems: Sequence[str]) -> list[str]:
    """Traces beside dumps are no dumps, which deserves one line rather than one each."""
    from stepscope.report import units

    traces = _traces_in(path)
    if not traces:
        return list(problems)
    theirs = tuple(f"{one}: " for one in traces)
    kept = [problem for problem in problems if not problem.startswith(theirs)]
    left_out = (
        f"{path}: {units.count(len(traces), 'profiler trace')} left out, as the Flight Recorder "
        "dumps beside them tell of a hang; to diagnose them, move them to a folder of their own"
    )
    return [*kept, left_out]


def _traces_in(folder: Path) -> list[Path]:
    from stepscope.formats import kineto
    from stepscope.formats.kineto.files import trace_files

    try:
        return [one for one in trace_files(folder) if folder.is_dir() and kineto.recognise(one)]
    except SourceError:
        return []
