"""Prometheus series of the jobs on this host, for dashboards and alerts.

Rows go in as they are stored; every fifteen seconds samples come out. `docs/naming.md` lists the
names. The number of series is bounded: `MOST_PHASES` names of phases and `MOST_KERNELS` names of
kernels, beyond which values are summed as `other`, and `MOST_SERIES` series of a job, beyond which
they are left out and counted.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from stepscope.processor.records.normalise import Rows
from stepscope.store.remote_write import Sample
from stepscope.store.remote_write.encode import Labels

MOST_PHASES = 40
"""Phase names in one job: ours are ten, frameworks have twenty, users add others."""
TOP_KERNELS = 10
"""Kernels with the longest total time, per rank and window."""
MOST_KERNELS = 40
"""Kernel names in one job over its lifetime."""
MOST_SERIES = 20_000
"""Eight ranks have at most 8 x (3 + 3 x 40 + 3 x 40) series. A processor that serves many hosts is
cut off here: 20 MB of memory."""
_LONGEST_NAME = 120
"""Characters in a label: names of template kernels can have thousands."""
_OTHER = "other"

_UNKNOWN = float("nan")
"""A value that is not known yet and is not sent."""

_STEPS = (
    "stepscope_step", "stepscope_steps_total", "stepscope_step_seconds_total",
    "stepscope_step_longest_seconds",
)  # fmt: skip
_PHASES = (
    "stepscope_phases_total", "stepscope_phase_seconds_total", "stepscope_phase_wait_seconds_total",
)  # fmt: skip
_KERNELS = (
    "stepscope_kernel_launches_total", "stepscope_kernel_seconds_total",
    "stepscope_kernel_p99_seconds",
)  # fmt: skip


@dataclass
class _Names:
    """Names used as labels; beyond `most` of them, new names become `other`."""

    most: int
    known: set[str] = field(default_factory=set)

    def label(self, name: str) -> str:
        name = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
        if name not in self.known:
            if len(self.known) >= self.most:
                return _OTHER
            self.known.add(name)
        return name


Row = tuple[tuple[str, ...], Labels, list[float]]
"""Series with the same labels: their names, the labels, their values."""


class _Job:
    """The series of one job: counters and gauges."""

    def __init__(self, job: str, host: str) -> None:
        self._base = (("host", host), ("job", job))
        self._rows: dict[tuple[str, ...], Row] = {}
        self._count = 0
        self.phases, self.kernels = _Names(MOST_PHASES), _Names(MOST_KERNELS)
        self.phase_rows: dict[tuple[int, str], list[float]] = {}
        """Values by full phase name: a fast path, since the same phases come thousands of times."""
        self.stepped: set[int] = set()
        """Ranks that finished a step since the last samples."""
        self.left_out = 0

    def values(self, names: tuple[str, ...], **labels: str) -> list[float]:
        """The values of series with the same labels, to be modified in place; at first unknown."""
        key = (names[0], *labels.values())
        if key not in self._rows:
            if self._count + len(names) > MOST_SERIES:
                self.left_out += 1
                return [_UNKNOWN] * len(names)
            self._count += len(names)
            pairs = (*self._base, *sorted(labels.items()))
            self._rows[key] = (names, pairs, [_UNKNOWN] * len(names))
        return self._rows[key][2]

    def samples(self, time_ms: int) -> list[Sample]:
        self.stepped.clear()
        if self.left_out:
            self.values(("stepscope_series_left_out_total",))[0] = float(self.left_out)
        return [
            Sample(name, labels, value, time_ms)
            for names, labels, values in self._rows.values()
            for name, value in zip(names, values, strict=True)
            if not math.isnan(value)
        ]


class HostMetrics:
    """The series of all jobs on this host. Thread-safe."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._jobs: dict[str, _Job] = {}
        self._lock = threading.Lock()

    def note(self, job: str, table: str, rows: Rows) -> None:
        """Takes rows of any table; ignores those without series."""
        handler = _HANDLERS.get(table)
        if handler is None:
            return
        with self._lock:
            handler(self._jobs.setdefault(job, _Job(job, self._host)), rows)

    def samples(self, time_ms: int) -> list[Sample]:
        """The current value of every series."""
        with self._lock:
            return [one for job in self._jobs.values() for one in job.samples(time_ms)]

    def forget(self, job: str) -> None:
        """Drops the series of a job that has ended."""
        with self._lock:
            self._jobs.pop(job, None)


def _columns(rows: Rows, *columns: str) -> Iterable[tuple[Any, ...]]:
    lists = (
        rows[name].tolist() if hasattr(rows[name], "tolist") else rows[name] for name in columns
    )
    return zip(*lists, strict=True)


def _add(values: list[float], at: int, more: float) -> None:
    values[at] = more if math.isnan(values[at]) else values[at] + more


def _note_steps(job: _Job, rows: Rows) -> None:
    for rank, step, duration_ns in _columns(rows, "rank", "step", "duration_ns"):
        values = job.values(_STEPS, rank=str(rank))
        seconds = duration_ns / 1e9
        values[0] = float(step)
        _add(values, 1, 1.0)
        _add(values, 2, seconds)
        values[3] = max(values[3], seconds) if rank in job.stepped else seconds
        job.stepped.add(rank)


def _note_phases(job: _Job, rows: Rows) -> None:
    """Phases are the only rows that come by the hundred a second: 1 µs each."""
    columns = ("rank", "phase", "duration_ns", *(("wait_ns",) if "wait_ns" in rows else ()))
    for rank, phase, duration_ns, *wait_ns in _columns(rows, *columns):
        values = job.phase_rows.get((rank, phase))
        if values is None:
            values = _phase_row(job, rank, phase)
        _add(values, 0, 1.0)
        _add(values, 1, duration_ns / 1e9)
        if wait_ns and wait_ns[0] is not None:
            _add(values, 2, wait_ns[0] / 1e9)


def _phase_row(job: _Job, rank: int, phase: str | None) -> list[float]:
    label = job.phases.label(phase or _OTHER)
    values = job.values(_PHASES, rank=str(rank), phase=label)
    if label == phase:
        job.phase_rows[rank, label] = values
    return values


def _note_kernels(job: _Job, rows: Rows) -> None:
    """Counts the longest kernels of each rank and window, and the rest together."""
    windows: dict[tuple[int, int], _Kernels] = defaultdict(lambda: defaultdict(list))
    columns = ("rank", "window_start_ns", "kernel", "count", "p50_ns", "p99_ns")
    for rank, start, kernel, count, p50_ns, p99_ns in _columns(rows, *columns):
        windows[rank, start][kernel or _OTHER].append((count or 0, p50_ns or 0, p99_ns or 0))
    for (rank, _), kernels in windows.items():
        _note_window(job, str(rank), kernels)


_Kernels = dict[str, list[tuple[int, int, int]]]
"""Count, median and 99th percentile of each mode, by kernel name."""


def _note_window(job: _Job, rank: str, kernels: _Kernels) -> None:
    took = {name: sum(c * p50 for c, p50, _ in modes) for name, modes in kernels.items()}
    top = set(sorted(took, key=lambda name: (-took[name], name))[:TOP_KERNELS])
    for name, modes in kernels.items():
        kernel = job.kernels.label(name) if name in top else _OTHER
        values = job.values(_KERNELS, rank=rank, kernel=kernel)
        _add(values, 0, float(sum(count for count, _, _ in modes)))
        _add(values, 1, took[name] / 1e9)
        if kernel != _OTHER:
            values[2] = max(p99 for _, _, p99 in modes) / 1e9


def _note_losses(job: _Job, rows: Rows) -> None:
    for table, count in _columns(rows, "table", "rows"):
        _add(job.values(("stepscope_lost_rows_total",), table=table), 0, float(count))


def _note_hardware(job: _Job, rows: Rows) -> None:
    """Takes stepscope's own metrics; for hardware counters there are better exporters."""
    for rank, metric, value in _columns(rows, "rank", "metric", "value"):
        if metric == "stepscope_processor_cpu":
            job.values(("stepscope_processor_cpu_cores",))[0] = value
        elif metric == "steps_blocked":
            job.values(("stepscope_steps_blocked",), rank=str(rank))[0] = value


_HANDLERS = {
    "steps": _note_steps,
    "phases": _note_phases,
    "kernel_summaries": _note_kernels,
    "losses": _note_losses,
    "hardware": _note_hardware,
}
