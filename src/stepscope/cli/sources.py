"""Opens the source of a command: a job folder, traces or Flight Recorder dumps."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Sequence
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
    """A source of windows; a job folder can be read repeatedly while it grows."""

    problems: list[str]
    version: int
    """Changes whenever `refresh` returns a different window."""

    def refresh(self) -> Window: ...

    def read(self) -> Window:
        """Reads everything once; uses less memory than `refresh`."""
        ...


@dataclass
class Recording:
    """Traces or dumps, which are read once because they do not grow."""

    window: Window
    problems: list[str] = field(default_factory=list)
    version: int = 0

    def refresh(self) -> Window:
        return self.window

    def read(self) -> Window:
        return self.window


def open_source(
    source: str, history: History | None = None, tables: Collection[str] | None = None
) -> Source:
    """Opens a source. Traces and dumps are read now, a job folder on `refresh` or `read`.

    With a `history`, a job folder keeps only that many rows in memory; with `tables`, only these
    are read of it.

    Raises:
        SourceError: the source is a recording that cannot be read, or not a known kind of source.
        UsageError: `source` is empty.
    """
    # importing numpy starts one OpenBLAS thread per core; nothing here uses them
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return read_recording(source) or _job(source, history, tables)


def open_window(source: str) -> tuple[Window, list[str]]:
    """Reads a whole source; also returns one line for each file or part that was left out.

    Raises:
        SourceError: the source cannot be read, or is not a known kind of source.
    """
    opened = open_source(source)
    if isinstance(opened, Recording):
        return opened.window, opened.problems
    with terminal.progress(f"reading {source}"):
        return opened.read(), opened.problems


def read_recording(source: str) -> Recording | None:
    """Reads traces or Flight Recorder dumps; None if the source contains neither.

    Raises:
        SourceError: the source contains traces or dumps, but none of them can be used.
        UsageError: `source` is empty.
    """
    if not source:
        raise UsageError("the folder name is empty")
    path = Path(source)
    if "://" in source or not _exists(path) or holds_jobs(path):
        return None
    reader = _reader_of(path)
    return None if reader is None else reader(path)


def _job(source: str, history: History | None, tables: Collection[str] | None) -> Source:
    from stepscope.store.reader import JobReader
    from stepscope.trace import TABLES

    path, wanted = Path(source), tuple(TABLES) if tables is None else tables
    if "://" in source or not _exists(path):
        return JobReader(source, history, wanted)
    if path.is_file():
        raise SourceError(
            f"{source} is no PyTorch profiler trace, Flight Recorder dump or Perfetto trace of "
            "stepscope; to diagnose a job, name its folder"
        )
    if (names := _listed(path)) and not holds_jobs(path):
        raise SourceError(
            f"nothing to read in {source}: no job folder, no PyTorch profiler traces (*.json, "
            "*.json.gz), no Flight Recorder dumps, no Perfetto traces of stepscope "
            f"(*.perfetto-trace.gz); it contains {names}"
        )
    return JobReader(source, history, wanted)


def _listed(path: Path) -> str:
    """The first names in a folder; empty if there are none, or if it cannot be listed."""
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except OSError:
        return ""
    shown = [name + "/" * (path / name).is_dir() for name in names[:_LISTED]]
    return ", ".join(shown) + (", …" if len(names) > _LISTED else "")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # the name is too long, or access is denied
        return False


def holds_jobs(path: Path) -> bool:
    """Whether a folder is a job folder or a store of jobs, and hence no other kind of source."""
    if not path.is_dir():
        return False
    from stepscope.store.layout import DEVICES
    from stepscope.store.location import Location
    from stepscope.store.source import is_job

    try:
        root = Location.parse(str(path))
        folders, files = root.top()
        inside = (root.child(name) for name in folders if name != DEVICES)
        return is_job(folders, files) or any(is_job(*one.top()) for one in inside)
    except SourceError:
        return False


def _reader_of(path: Path) -> Callable[[Path], Recording] | None:
    """Picks a reader by the content of the files; damaged files, by their names.

    A hang has priority over slowness: if a folder has both dumps and traces, the dumps are read.
    """
    from stepscope.formats import flight_recorder, kineto, perfetto
    from stepscope.formats.flight_recorder.files import find

    if flight_recorder.recognise(path):
        return _read_dumps
    if kineto.recognise(path):
        return _read_traces
    if perfetto.recognise(path):
        return _read_timelines
    dumps = [one.path for one in find(path)[0]]
    _check_contents(path, dumps)
    if dumps:
        return _read_dumps
    named = any(path.match(name) or next(path.glob(name), None) for name in _TRACE_NAMES)
    return _read_traces if named or kineto.named_so(path) else None


def _check_contents(path: Path, files: Sequence[Path]) -> None:
    """Raises SourceError if files with names of recordings are all empty."""
    from stepscope.formats.flight_recorder.files import size_of
    from stepscope.report import units

    if not files or any(size_of(file) for file in files):
        return
    if path.is_file():
        raise SourceError(f"{path} is empty: nothing was written to it")
    more = f" and {units.count(len(files) - 1, 'more file')}" if len(files) > 1 else ""
    be, them = ("are", "them") if more else ("is", "it")
    raise SourceError(f"{files[0].name}{more} in {path} {be} empty: nothing was written to {them}")


def _read_traces(path: Path) -> Recording:
    from stepscope.formats import kineto

    with terminal.byte_progress(f"reading traces in {path.name}") as advance:
        reading = kineto.read(path, progress=advance)
    logger.info("read traces in %s, %d problems", path, len(reading.problems))
    return Recording(reading.window, list(reading.problems))


def _read_timelines(path: Path) -> Recording:
    from stepscope.formats import perfetto

    with terminal.byte_progress(f"reading Perfetto traces in {path.name}") as advance:
        reading = perfetto.read(path, progress=advance)
    logger.info("read Perfetto traces in %s, %d problems", path, len(reading.problems))
    return Recording(reading.window, list(reading.problems))


def _read_dumps(path: Path) -> Recording:
    from stepscope.formats import flight_recorder

    with terminal.progress(f"reading Flight Recorder dumps in {path.name}"):
        dumps = flight_recorder.read(path)
    return Recording(dumps.window, _without_traces(path, dumps.problems))


def _without_traces(path: Path, problems: Sequence[str]) -> list[str]:
    """Replaces the problems of traces among the dumps, one each, by a single line."""
    from stepscope.report import units

    traces = _traces_in(path)
    if not traces:
        return list(problems)
    prefixes = tuple(f"{trace}: " for trace in traces)
    kept = [problem for problem in problems if not problem.startswith(prefixes)]
    left_out = (
        f"{path}: {units.count(len(traces), 'profiler trace')} left out, because Flight "
        "Recorder dumps in the same folder have priority; to diagnose the traces, move them to a "
        "folder of their own"
    )
    return [*kept, left_out]


def _traces_in(folder: Path) -> list[Path]:
    from stepscope.formats import kineto
    from stepscope.formats.kineto.files import trace_files

    try:
        return [file for file in trace_files(folder) if folder.is_dir() and kineto.recognise(file)]
    except SourceError:
        return []
