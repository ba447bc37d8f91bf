"""Reads a folder of traces into a window, with several processes if there is much to read."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepscope.errors import FormatError, SourceError
from stepscope.formats.kineto.accumulation import with_whole_steps
from stepscope.formats.kineto.departures import with_members
from stepscope.formats.kineto.files import display_name, trace_files
from stepscope.formats.kineto.gloo import with_groups
from stepscope.formats.kineto.job import check_duplicates, window_of, with_ranks
from stepscope.formats.kineto.rank_trace import GUESSED, RankTrace, read_file
from stepscope.formats.kineto.together import check_together, with_bases
from stepscope.trace import UNKNOWN_PEER
from stepscope.window import Window

Progress = Callable[[int, int], None]
"""Called with the bytes read so far and the bytes of all files."""

_SMALL_BYTES = 4 << 20
"""Starting a process takes as long as reading this much of a gzipped trace."""
_ZIPPED_TIMES = 15
"""Compression ratio of real traces."""
_LOOK_EVERY_S = 0.2
MOSTLY = 0.5
"""Of the sends and receives: the other rank is known. Statistics."""
_NO_PEERS = (
    "the traces do not record who sends to whom, and times do not show it: who waits for whom in a "
    "pipeline stays unknown; record_shapes=True records it"
)
_counter: Any = None
"""In a worker process: the shared number of bytes read."""


@dataclass(frozen=True)
class Reading:
    """The window, and one line for each problem and for how steps were found."""

    window: Window
    problems: tuple[str, ...] = ()


def read(source: Path, *, progress: Progress | None = None, workers: int | None = None) -> Reading:
    """Reads PyTorch profiler traces: a folder with one per rank, or a single one.

    Raises:
        SourceError: nothing can be read, or nothing is a trace.
    """
    files = trace_files(source)
    total = sum(path.stat().st_size for path in files)
    outcomes = _read_all(files, _Progress(progress, total), workers or _processes(files))
    traces = [replace(one, name=display_name(one.path, source))
              for one in outcomes if isinstance(one, RankTrace)]  # fmt: skip
    failures = [one for one in outcomes if isinstance(one, SourceError)]
    if not traces:
        raise failures[0] if len(failures) == 1 else FormatError(_none_usable(source, failures))
    traces = with_bases(with_ranks(traces))
    check_duplicates(traces)
    traces, joined = with_whole_steps(traces)
    traces, unnamed = with_groups(traces)
    traces = with_members(traces)
    name = source.stem.partition(".")[0] if source.is_file() else source.resolve().name
    window = window_of(name or "traces", traces)
    far_apart = check_together(traces, window.table("comm_ops"))
    problems = [f"{failure}; left out" for failure in failures]
    problems += _of_files(traces)
    problems += (*far_apart, *joined, *unnamed)
    problems += _unknown_peers(window)
    problems += _how_steps_were_found(traces)
    return Reading(window, tuple(problems))


def _of_files(traces: Sequence[RankTrace]) -> list[str]:
    """The problems of each file; unnamed groups are one line for all files."""
    found = [f"{trace.name}: {one}" for trace in traces for one in trace.problems if one != GUESSED]
    guessed = [trace.name for trace in traces if GUESSED in trace.problems]
    if guessed:
        more = f" and {len(guessed) - 1} more" if len(guessed) > 1 else ""
        found.append(f"{guessed[0]}{more}: {GUESSED}")
    return found


def _unknown_peers(window: Window) -> list[str]:
    comm = window.table("comm_ops")
    if comm is None:
        return []
    p2p = comm.take(comm.strings("op").equals("Send", "Recv"))
    known = p2p.ints("peer") != UNKNOWN_PEER
    return [_NO_PEERS] if len(p2p) and known.mean() < MOSTLY else []


def _none_usable(source: Path, failures: Sequence[SourceError]) -> str:
    count = len(failures)
    return f"{source}: none of {count} files is a usable trace; the first error: {failures[0]}"


def _how_steps_were_found(traces: Sequence[RankTrace]) -> list[str]:
    ways = sorted({trace.steps_found_by for trace in traces if trace.steps_found_by})
    return [f"the traces do not mark their steps; found by {' and '.join(ways)}"] if ways else []


@dataclass
class _Progress:
    progress: Progress | None
    total: int
    done: int = 0

    def advance(self, size: int) -> None:
        self.reached(self.done + size)

    def reached(self, done: int) -> None:
        if self.progress is not None and done > self.done:
            self.progress(done, self.total)
        self.done = done


def _processes(files: Sequence[Path]) -> int:
    """The number of processes: at most one per core, and only as many as are worth starting."""
    worthwhile = sum(map(_weight, files)) // (_SMALL_BYTES * _ZIPPED_TIMES)
    return max(1, min(worthwhile, len(files), len(os.sched_getaffinity(0)), 61))


def _weight(path: Path) -> int:
    size = path.stat().st_size
    return size * _ZIPPED_TIMES if path.suffix == ".gz" else size


def _read_all(
    files: Sequence[Path], progress: _Progress, workers: int
) -> list[RankTrace | SourceError]:
    if workers > 1 and len(files) > 1:
        try:
            return _in_processes(files, progress, min(workers, len(files)))
        except (RuntimeError, OSError) as cause:  # a broken pool is a RuntimeError
            import logging  # importing it takes as long as reading a small trace

            logging.getLogger(__name__).warning("reading in one process: %s", cause)
            progress.done = 0
    return [_outcome(path, progress.advance) for path in files]


def _in_processes(
    files: Sequence[Path], progress: _Progress, workers: int
) -> list[RankTrace | SourceError]:
    # importing these takes as long as reading a small trace
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, wait

    context = multiprocessing.get_context("spawn")  # forking copies locks that threads may hold
    counter = context.Value("q", 0)
    with ProcessPoolExecutor(workers, context, _start_worker, (counter,)) as pool:
        futures = [pool.submit(_in_worker, path) for path in files]
        pending = set(futures)
        while pending:
            _, pending = wait(pending, _LOOK_EVERY_S)
            progress.reached(counter.value)
        return [future.result() for future in futures]


def _start_worker(counter: Any) -> None:
    global _counter  # noqa: PLW0603 - the only place for a pool's worker state
    _counter = counter


def _in_worker(path: Path) -> RankTrace | SourceError:
    return _outcome(path, _count)


def _count(size: int) -> None:
    with _counter.get_lock():
        _counter.value += size


def _outcome(path: Path, advance: Callable[[int], None]) -> RankTrace | SourceError:
    try:
        return read_file(path, advance)
    except SourceError as failure:
        return failure
