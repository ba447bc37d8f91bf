"""A closer look at a rank during a window of profiling: its loader's workers, and the GIL.

torch.profiler sees the threads of the rank's own process only, and not which of them holds the GIL.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stepscope.processor.sampling.recorder import GIL_HOLDERS, Recorder, RecordingError
from stepscope.processor.sampling.runs import (
    Run,
    clip,
    events_of,
    runs_of_chrometrace,
    runs_of_counts,
    worker_runs,
)

CLOSE_HZ = 50
"""Costs 1.9 % of a core for a process of 5 threads, 100 Hz cost 3.8 % (measured). The share of a
function in a window of 20 s has an error of at most 1.6 % (statistics)."""
MOST_WORKERS = 16
"""Sampled loader workers per rank: they do the same. Our choice."""
_WORKER = "pt_data_worker"
"""What torch calls the process of a loader worker."""
_END_SECONDS = 2.0


@dataclass(frozen=True)
class _Side:
    """A recorder beside that of the rank."""

    recorder: Recorder
    worker: int | None
    """The number of the loader worker; None: the holders of the GIL."""

    def runs(self, wait_seconds: float) -> list[Run]:
        with contextlib.suppress(RecordingError, ValueError):  # it lacks permission, or was killed
            data = self.recorder.read(wait_seconds)
            return [] if data is None else self._runs_in(data)
        return []

    def _runs_in(self, data: bytes) -> list[Run]:
        begin, end = self.recorder.spawned_ns, self.recorder.until_ns or self.recorder.spawned_ns
        if self.worker is None:
            return runs_of_counts(data.decode(errors="replace"), begin, end, CLOSE_HZ)
        runs = clip(runs_of_chrometrace(events_of(data), begin, end), begin, end)
        return worker_runs(runs, self.worker)


class CloseLook:
    """The recorders beside that of one rank; they run until it ends."""

    def __init__(self, py_spy: str, folder: Path, pid: int) -> None:
        self._sides = [_Side(Recorder.start(py_spy, folder, pid, CLOSE_HZ, what=GIL_HOLDERS), None)]
        for number, worker in enumerate(loader_workers(pid)[:MOST_WORKERS]):
            self._sides.append(_Side(Recorder.start(py_spy, folder, worker, CLOSE_HZ), number))

    def end(self, now_ns: int) -> None:
        for side in self._sides:
            side.recorder.end(now_ns)

    @property
    def is_over(self) -> bool:
        return all(side.recorder.is_over for side in self._sides)

    def runs(self, wait_seconds: float = _END_SECONDS) -> list[Run]:
        """What was seen, once it has ended."""
        return [run for side in self._sides for run in side.runs(wait_seconds)]


def loader_workers(pid: int) -> list[int]:
    """The processes that load batches for a rank, in the order in which it started them."""
    return sorted(child for child in _children(pid) if _name(child) == _WORKER)


def _children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):  # it has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                yield from map(int, (thread / "children").read_text().split())


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
