"""Batches of events to columns: the only place that sees every event, one batch at a time.

Kept: what ran on the device, the calls into its runtime, operators and annotations of the CPU,
communication calls with their arguments, Python functions. Left: arrows between events (they repeat
the correlation ids), memory samples, metadata of the viewer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from operator import attrgetter
from typing import Any

import numpy as np

from stepscope.formats.kineto.calls import Call, Calls, communicates
from stepscope.formats.kineto.events import Arguments, Batch, Number
from stepscope.formats.kineto.names import LOADER, OPTIMIZER_STEP, PROFILER_STEP
from stepscope.formats.kineto.spans import named
from stepscope.window import NULL, Floats, Ints, Mask, Strings, Table

CPU, MARK, RUNTIME, DEVICE, PYTHON = "cpu", "mark", "runtime", "device", "python"
_KINDS = {
    "cpu_op": CPU, "Operator": CPU, "operator": CPU,
    "user_annotation": MARK,
    "cuda_runtime": RUNTIME, "cuda_driver": RUNTIME, "hip_runtime": RUNTIME, "Runtime": RUNTIME,
    "xpu_runtime": RUNTIME, "privateuse1_runtime": RUNTIME, "runtime": RUNTIME,
    "kernel": DEVICE, "Kernel": DEVICE, "gpu_memcpy": DEVICE, "gpu_memset": DEVICE,
    "Memcpy": DEVICE, "Memset": DEVICE, "concurrent_kernel": DEVICE,
    "python_function": PYTHON, "Python": PYTHON,
}  # fmt: skip
"""Categories of Kineto's `ActivityType` since PyTorch 1.8, and of the exporters before it."""

MOST_EVENTS = 50_000_000
"""Of one file, about 2 GB of columns: beyond it reading stops rather than fill the memory."""
MOST_TEXT = 256 << 20
"""Bytes of all distinct names of a file; real traces have some thousand names."""
_NAME_BYTES = 150
"""What a name takes beside its characters: a string, and its place in a dictionary."""
_NANOSECONDS_FROM = 1e17
"""As microseconds the year 5138: such times are nanoseconds."""
_LATEST_NS = 2**61
_LONGEST_INTEGER = 24
"""Decimal digits; guards against numbers like 1e999999999."""
_NO_ARGUMENTS = Arguments()
_NAME, _THREAD, _START, _DURATION = map(attrgetter, ("name", "tid", "ts", "dur"))
_EXACT_FLOAT = 2.0**53


class Codes(dict[Any, int]):
    """Numbers values in the order in which they were first asked for."""

    def __missing__(self, key: Any) -> int:
        self[key] = code = len(self)
        return code


class Names(Codes):
    """Codes of names that know how much memory they take."""

    size_bytes = 0

    def __missing__(self, key: Number) -> int:
        self.size_bytes += _NAME_BYTES + (len(key) if isinstance(key, str) else 0)
        return super().__missing__(key)


@dataclass
class Columns:
    """Growing columns of one kind of event."""

    parts: dict[str, list[Ints]] = field(default_factory=dict)

    def append(self, **columns: Ints) -> None:
        for name, values in columns.items():
            self.parts.setdefault(name, []).append(values)

    def table(self, names: tuple[str, ...], *required: str) -> Table:
        """All rows in order of time."""
        whole = {name: _joined(self.parts.pop(name, [])) for name in required}
        order = np.lexsort((-whole["duration_ns"], whole["start_ns"]))
        # one by one, so that few are held twice
        sorted_ = {name: whole.pop(name)[order] for name in required}
        codes = sorted_.pop("name", None)
        if codes is None:
            return Table(sorted_)
        return Table({**sorted_, "name": Strings(codes.astype(np.int32), names)})


@dataclass(frozen=True)
class Recording:
    """Everything kept of one file, each table in order of time, times relative to its base."""

    cpu: Table
    marks: Table
    runtime: Table
    device: Table
    python: Table
    calls: Table
    arguments: tuple[Call, ...]
    threads: tuple[Number, ...]
    """What the trace calls the threads that the column `thread` numbers."""
    main: int
    """The number of the thread that trains, -1 where none is known."""
    impossible: int
    full: bool


class Recorder:
    """Takes batches, gives a recording."""

    def __init__(self) -> None:
        self._kinds: dict[str, Columns] = {kind: Columns() for kind in (*_KINDS.values(), "calls")}
        self._names, self._threads, self._calls = Names(), Names(), Calls()
        self._mains: set[int] = set()
        self._unit = 0
        self._impossible = 0
        self.kept = 0

    @property
    def full(self) -> bool:
        named = self._names.size_bytes + self._threads.size_bytes
        return self.kept >= MOST_EVENTS or named >= MOST_TEXT or self._calls.full

    def add(self, batch: Batch) -> None:
        chosen: dict[str | None, list[Any]] = defaultdict(list)
        for event in batch:
            chosen[event.cat].append(event)
        for category, events in chosen.items():
            if category in _KINDS:
                lasting = [event for event in events if event.ph == "X"]
                self._add(_KINDS[category], lasting)

    def _add(self, kind: str, events: list[Any]) -> None:
        if not events:
            return
        start, duration, possible = self._times(events)
        if not possible.all():
            self._impossible += int((~possible).sum())
            events = [e for e, good in zip(events, possible.tolist(), strict=True) if good]
            start, duration = start[possible], duration[possible]
        self.kept += len(events)
        columns: dict[str, Ints] = {"start_ns": start, "duration_ns": duration}
        if kind != RUNTIME:
            columns["name"] = _coded(self._names, map(_NAME, events))
        if kind not in (RUNTIME, DEVICE):
            columns["thread"] = self._thread_column(events)
        columns |= self._arguments_of(kind, events)
        self._kinds[kind].append(**columns)
        if kind in (CPU, MARK):
            self._add_calls(events, columns)

    def _arguments_of(self, kind: str, events: list[Any]) -> dict[str, Ints]:
        if kind in (CPU, MARK):
            return {}
        args = [event.args or _NO_ARGUMENTS for event in events]
        if kind == PYTHON:
            return {"id": whole_numbers([a.python_id for a in args]),
                    "parent": whole_numbers([a.python_parent for a in args])}  # fmt: skip
        correlation = whole_numbers([a.correlation for a in args])
        if kind == RUNTIME:
            return {"correlation": correlation}
        streams = whole_numbers([a.stream for a in args])
        if (streams == NULL).any():
            streams = np.where(streams == NULL, whole_numbers([e.tid for e in events]), streams)
        return {"correlation": correlation, "stream": streams, **self._call_columns(events)}

    def _add_calls(self, events: list[Any], columns: dict[str, Ints]) -> None:
        rows = [at for at, event in enumerate(events) if communicates(event.name or "")]
        if rows:
            chosen = {name: column[rows] for name, column in columns.items()}
            self._kinds["calls"].append(**chosen, **self._call_columns([events[r] for r in rows]))

    def _call_columns(self, events: list[Any]) -> dict[str, Ints]:
        """Arguments of communication as numbers: few differ, but for the sequence number."""
        args = [event.args or _NO_ARGUMENTS for event in events]
        codes = [self._calls.code(a) for a in args]
        return {
            "call": np.array(codes, np.int32),
            "external": whole_numbers([a.external for a in args]),
            "sequence": whole_numbers([a.sequence for a in args]),
        }

    def _thread_column(self, events: list[Any]) -> Ints:
        codes = _coded(self._threads, map(_THREAD, events))
        if not self._mains:
            # Linux gives a process's first thread the number of the process
            self._mains = {self._threads[e.tid] for e in events if e.tid == e.pid}
        return codes

    def _times(self, events: list[Any]) -> tuple[Ints, Ints, Mask]:
        """Starts and durations in nanoseconds, and which of them can be true."""
        length = floats(list(map(_DURATION, events)))
        starts = list(map(_START, events))
        exact = Decimal in set(map(type, starts))
        rough = floats(starts)
        if not self._unit:
            usual = np.abs(rough[np.isfinite(rough)])
            largest = float(np.sort(usual)[usual.size // 2]) if usual.size else 0.0
            self._unit = 1 if largest > _NANOSECONDS_FROM else 1000
        start = self._exact(starts) if exact else self._rounded(rough)
        duration = self._rounded(np.where(np.isnan(length), 0.0, length))
        possible = np.isfinite(rough) & (start != NULL) & (duration >= 0)
        return start, duration, np.asarray(possible)

    def _rounded(self, values: Floats) -> Ints:
        """The whole part is exact by itself; the fraction alone has no digit to lose."""
        fine = np.isfinite(values) & (np.abs(values) * self._unit < _LATEST_NS)
        values = np.where(fine, values, 0.0)
        below = np.floor(values)
        fraction = np.rint((values - below) * self._unit).astype(np.int64)
        return np.where(fine, below.astype(np.int64) * self._unit + fraction, NULL)

    def _exact(self, values: Sequence[Decimal | float | None]) -> Ints:
        return np.array([_nanoseconds(value, self._unit) for value in values], np.int64)

    def _main(self, marks: Table, operators: Table) -> int:
        """The thread that trains; else the process's first; else the busiest."""
        training = [t.take(named(t, PROFILER_STEP, OPTIMIZER_STEP, LOADER)) for t in
                    (marks, operators)]  # fmt: skip
        for table in (*training, *(() if self._mains else (operators,))):
            if len(table):
                return int(np.argmax(np.bincount(table.ints("thread"))))
        return min(self._mains, default=-1)

    def finish(self) -> Recording:
        names = tuple(name or "" for name in self._names)
        own = {"start_ns", "duration_ns", "name"}
        cpu = {*own, "thread"}
        call = {"call", "external", "sequence"}
        needs = {
            CPU: cpu, MARK: cpu, PYTHON: {*cpu, "id", "parent"},
            RUNTIME: {"start_ns", "duration_ns", "correlation"},
            DEVICE: {*own, "correlation", "stream", *call}, "calls": {*cpu, *call},
        }  # fmt: skip
        tables = {kind: self._kinds[kind].table(names, *sorted(needs[kind])) for kind in needs}
        return Recording(
            cpu=tables[CPU], marks=tables[MARK], runtime=tables[RUNTIME], device=tables[DEVICE],
            python=tables[PYTHON], calls=tables["calls"], arguments=tuple(self._calls.found),
            threads=tuple(self._threads), main=self._main(tables[MARK], tables[CPU]),
            impossible=self._impossible, full=self.full,
        )  # fmt: skip


def _coded(codes: Codes, values: Iterable[Any]) -> Ints:
    return np.array(list(map(codes.__getitem__, values)), np.int64)


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _nanoseconds(time_: Decimal | float | None, unit: int) -> int:
    value = Decimal("NaN" if time_ is None else time_)
    if not value.is_finite() or value.adjusted() > _LONGEST_INTEGER:
        return NULL
    time = int((value * unit).to_integral_value())
    return time if -_LATEST_NS < time < _LATEST_NS else NULL


def floats(values: Sequence[Any]) -> Floats:
    """NaN for what is missing or no number."""
    try:
        return np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_float(value) for value in values], np.float64)


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def whole_numbers(values: Sequence[Number]) -> Ints:
    """NULL for what is missing, no number, or too large to be told from its neighbours."""
    numbers = floats(values)
    good = np.isfinite(numbers) & (np.abs(numbers) < _EXACT_FLOAT)
    return np.where(good, np.where(good, numbers, 0.0).astype(np.int64), NULL)
