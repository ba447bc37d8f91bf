"""What dashboards and alerts see of the jobs on this host: few series, whatever the job does.

Rows go in as they are stored; every fifteen seconds samples come out. `docs/naming.md` has the
names. The number of series is bounded: names of phases by `MOST_PHASES`, of kernels by
`MOST_KERNELS`, those of a job by `MOST_SERIES`; what is beyond that is summed under the name
`other`, or counted as left out.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stepscope.processor.normalise import Rows
from stepscope.store.remote_write import Sample

MOST_PHASES = 40
"""Names of phases in one job: ours are ten, frameworks have twenty, the rest are people's own."""
TOP_KERNELS = 10
"""Of one rank and window the kernels that took longest."""
MOST_KERNELS = 40
"""Names of kernels in one job, in all its life."""
MOST_SERIES = 20_000
"""Eight ranks have 8 x (3 + 3 x 40 + 3 x 40) at the very most; a processor that stands for many
hosts has more, and is cut off here: 20 MB of memory."""
_LONGEST_NAME = 120
"""Characters of a label: kernels of templates have names of thousands."""
_OTHER = "other"

Key = tuple[str, tuple[tuple[str, str], ...]]


def _seconds(duration_ns: int | float | None) -> float:
    return (duration_ns or 0) / 1e9


@dataclass
class _Names:
    """Names that became labels; beyond `most` all become `other`."""

    most: int
    known: set[str] = field(default_factory=set)

    def label(self, name: str) -> str:
        name = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
        if name not in self.known:
            if len(self.known) >= self.most:
                return _OTHER
            self.known.add(name)
        return name


class _Job:
    """The series of one job: totals that only grow, and values as they are now."""

    def __init__(self, job: str, host: str) -> None:
        self._base = (("host", host), ("job", job))
        self.values: dict[Key, float] = {}
        self.longest_step: dict[str, float] = {}
        self.phases = _Names(MOST_PHASES)
        self.kernels = _Names(MOST_KERNELS)
        self.left_out = 0

    def add(self, name: str, value: float, **labels: str) -> None:
        key = self._key(name, labels)
        if key is not None:
            self.values[key] = self.values.get(key, 0.0) + value

    def put(self, name: str, value: float, **labels: str) -> None:
        key = self._key(name, labels)
        if key is not None:
            self.values[key] = value

    def _key(self, name: str, labels: Mapping[str, str]) -> Key | None:
        key = (name, (*self._base, *sorted(labels.items())))
        if key in self.values or len(self.values) < MOST_SERIES:
            return key
        self.left_out += 1
        return None

    def samples(self, time_ms: int) -> list[Sample]:
        for rank, seconds in self.longest_step.items():
            self.put("stepscope_step_longest_seconds", seconds, rank=rank)
        self.longest_step.clear()
        if self.left_out:
            self.values["stepscope_series_left_out_total", self._base] = float(self.left_out)
        return [Sample(name, labels, v, time_ms) for (name, labels), v in self.values.items()]


class HostMetrics:
    """All jobs of this host. Rows may come from several threads."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._jobs: dict[str, _Job] = {}
        self._lock = threading.Lock()

    def note(self, job: str, table: str, rows: Rows) -> None:
        """Takes rows of any table; most say nothing here."""
        handler = _HANDLERS.get(table)
        if handler is None:
            return
        with self._lock:
            handler(self._jobs.setdefault(job, _Job(job, self._host)), rows)

    def samples(self, time_ms: int) -> list[Sample]:
        """The value of every series now."""
        with self._lock:
            return [one for job in self._jobs.values() for one in job.samples(time_ms)]

    def forget(self, job: str) -> None:
        """A job has ended: its series end with it."""
        with self._lock:
            self._jobs.pop(job, None)


def _values(rows: Rows, *columns: str) -> Iterable[tuple[Any, ...]]:
    lists = (
        rows[name].tolist() if hasattr(rows[name], "tolist") else rows[name] for name in columns
    )
    return zip(*lists, strict=True)


def _note_steps(job: _Job, rows: Rows) -> None:
    for number, step, duration_ns in _values(rows, "rank", "step", "duration_ns"):
        rank, seconds = str(number), _seconds(duration_ns)
        job.put("stepscope_step", float(step), rank=rank)
        job.add("stepscope_steps_total", 1.0, rank=rank)
        job.add("stepscope_step_seconds_total", seconds, rank=rank)
        job.longest_step[rank] = max(job.longest_step.get(rank, 0.0), seconds)


def _note_phases(job: _Job, rows: Rows) -> None:
    known = "wait_ns" in rows
    columns = ("rank", "phase", "duration_ns", "wait_ns" if known else "duration_ns")
    for number, name, duration_ns, wait_ns in _values(rows, *columns):
        rank, phase = str(number), job.phases.label(name or _OTHER)
        job.add("stepscope_phases_total", 1.0, rank=rank, phase=phase)
        job.add("stepscope_phase_seconds_total", _seconds(duration_ns), rank=rank, phase=phase)
        if known:
            wait_s = _seconds(wait_ns)
            job.add("stepscope_phase_wait_seconds_total", wait_s, rank=rank, phase=phase)


def _note_kernels(job: _Job, rows: Rows) -> None:
    """Of each rank and window the kernels that took longest; the rest together."""
    windows: dict[tuple[int, int], dict[str, list[tuple[int, int, int]]]] = {}
    columns = ("rank", "window_start_ns", "kernel", "count", "p50_ns", "p99_ns")
    for rank, start, kernel, count, p50_ns, p99_ns in _values(rows, *columns):
        modes = windows.setdefault((rank, start), defaultdict(list))
        modes[kernel or _OTHER].append((count or 0, p50_ns or 0, p99_ns or 0))
    for (rank, _), kernels in windows.items():
        _note_window(job, str(rank), kernels)


def _note_window(job: _Job, rank: str, kernels: Mapping[str, list[tuple[int, int, int]]]) -> None:
    took = {name: sum(c * p50 for c, p50, _ in modes) for name, modes in kernels.items()}
    top = sorted(took, key=lambda name: (-took[name], name))[:TOP_KERNELS]
    for name, modes in kernels.items():
        kernel = job.kernels.label(name) if name in top else _OTHER
        launches = float(sum(count for count, _, _ in modes))
        job.add("stepscope_kernel_launches_total", launches, rank=rank, kernel=kernel)
        job.add("stepscope_kernel_seconds_total", _seconds(took[name]), rank=rank, kernel=kernel)
        if kernel != _OTHER:
            slowest = _seconds(max(p99 for _, _, p99 in modes))
            job.put("stepscope_kernel_p99_seconds", slowest, rank=rank, kernel=kernel)


def _note_losses(job: _Job, rows: Rows) -> None:
    for table, count in _values(rows, "table", "rows"):
        job.add("stepscope_lost_rows_total", float(count), table=table)


def _note_hardware(job: _Job, rows: Rows) -> None:
    """What stepscope says of itself; for counters of the machine there are better exporters."""
    for number, metric, value in _values(rows, "rank", "metric", "value"):
        if metric == "stepscope_processor_cpu":
            job.put("stepscope_processor_cpu_cores", value)
        elif metric == "steps_blocked":
            job.put("stepscope_steps_blocked", value, rank=str(number))


_HANDLERS = {
    "steps": _note_steps,
    "phases": _note_phases,
    "kernel_summaries": _note_kernels,
    "losses": _note_losses,
    "hardware": _note_hardware,
}
