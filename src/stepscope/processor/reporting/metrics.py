"""What dashboards and alerts see of the jobs on this host: few series, whatever the job does.

Rows go in as they are stored; every fifteen seconds samples come out. `docs/naming.md` has the
names. The number of series is bounded: names of phases by `MOST_PHASES`, of kernels by
`MOST_KERNELS`, those of a job by `MOST_SERIES`; what is beyond that is summed under the name
`other`, or counted as left out.
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

_UNKNOWN = float("nan")
"""A number that nobody has told yet: it is not sent."""

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


Row = tuple[tuple[str, ...], Labels, list[float]]
"""Series that share labels: their names, the labels, their values."""


class _Job:
    """The series of one job: totals that only grow, and values as they are now."""

    def __init__(self, job: str, host: str) -> None:
        self._base = (("host", host), ("job", job))
        self._rows: dict[tuple[str, ...], Row] = {}
        self._count = 0
        self.phases, self.kernels = _Names(MOST_PHASES), _Names(MOST_KERNELS)
        self.phase_rows: dict[tuple[int, str], list[float]] = {}
        """By the names that phases really have: most rows are met again a thousand times."""
        self.stepped: set[int] = set()
        """Ranks that did a step since the last samples."""
        self.left_out = 0

    def values(self, names: tuple[str, ...], **labels: str) -> list[float]:
        """The values of series that share labels, to be changed; at first nobody knows them."""
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
    """The only rows that come by the hundred a second: 1 µs each."""
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
    """Of each rank and window the kernels that took longest; the rest together."""
    windows: dict[tuple[int, int], _Kernels] = defaultdict(lambda: defaultdict(list))
    columns = ("rank", "window_start_ns", "kernel", "count", "p50_ns", "p99_ns")
    for rank, start, kernel, count, p50_ns, p99_ns in _columns(rows, *columns):
        windows[rank, start][kernel or _OTHER].append((count or 0, p50_ns or 0, p99_ns or 0))
    for (rank, _), kernels in windows.items():
        _note_window(job, str(rank), kernels)


_Kernels = dict[str, list[tuple[int, int, int]]]
"""Count, median and 99th percentile of each mode, by kernel."""


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
    """What stepscope says of itself; for counters of the machine there are better exporters."""
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
