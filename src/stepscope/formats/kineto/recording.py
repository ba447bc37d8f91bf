"""The columns of one file in order of time, as input of the other modules.

Kept: device activity, calls into the runtime, operators and annotations of the CPU, communication
calls with their arguments, Python functions. Ignored: flow arrows (they repeat correlation ids),
memory samples, metadata of the viewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.formats.kineto.calls import COMMUNICATES, Call, Calls, Number
from stepscope.formats.kineto.compiled import Scanner
from stepscope.formats.kineto.names import COLLECTION, LOADER, OPTIMIZER_STEP, PROFILER_STEP
from stepscope.formats.kineto.plain import plain
from stepscope.formats.kineto.spans import ends, named
from stepscope.window import Column, Strings, Table, Union, union

CPU, MARK, RUNTIME, DEVICE, PYTHON, CALLS = "cpu", "mark", "runtime", "device", "python", "calls"
_CATEGORIES = {
    "cpu_op": CPU, "Operator": CPU, "operator": CPU,
    "user_annotation": MARK,
    "cuda_runtime": RUNTIME, "cuda_driver": RUNTIME, "hip_runtime": RUNTIME, "Runtime": RUNTIME,
    "xpu_runtime": RUNTIME, "privateuse1_runtime": RUNTIME, "runtime": RUNTIME,
    "kernel": DEVICE, "Kernel": DEVICE, "gpu_memcpy": DEVICE, "gpu_memset": DEVICE,
    "Memcpy": DEVICE, "Memset": DEVICE, "concurrent_kernel": DEVICE,
    "python_function": PYTHON, "Python": PYTHON,
}  # fmt: skip
"""Categories of Kineto's `ActivityType` since PyTorch 1.8, and of the exporters before it."""

_TIMES = ("start_ns", "duration_ns")
_CALL = ("call", "external", "sequence")
_COLUMNS = {
    CPU: (*_TIMES, "name", "thread"),
    MARK: (*_TIMES, "name", "thread"),
    PYTHON: (*_TIMES, "name", "thread", "id", "parent"),
    RUNTIME: (*_TIMES, "name", "correlation"),
    DEVICE: (*_TIMES, "name", "correlation", "stream", *_CALL),
    CALLS: (*_TIMES, "name", "thread", *_CALL),
}


@dataclass(frozen=True)
class Recording:
    """The events kept of one file; tables are in order of time, relative to the file's base."""

    cpu: Table
    marks: Table
    runtime: Table
    device: Table
    python: Table
    collections: Table
    """Runs of the garbage collector, of all threads: torch records them as Python functions."""
    calls: Table
    arguments: tuple[Call, ...]
    threads: tuple[Number, ...]
    """The names of threads; the column `thread` has indices into these."""
    main: int
    """The index of the training thread; -1 if unknown."""
    on_device: int
    """The number of the device that the process uses; -1 if unknown."""
    full: bool
    """Whether there were more events than any job writes, so that not all were read."""

    @cached_property
    def device_works(self) -> Union:
        """When the device executes something.

        Before its first recorded kernel it may execute what was launched before the recording.
        """
        start, end = self.device.ints("start_ns"), ends(self.device)
        if not start.size or not len(self.runtime):
            return union(start, end)
        first = min(int(self.runtime.ints("start_ns")[0]), int(start[0]))
        return union(np.append(start, first), np.append(end, start[0]))


def scanner() -> Scanner:
    """A scanner that keeps the events of a recording."""
    return Scanner(_CATEGORIES, COMMUNICATES)


def recording(scanned: Scanner) -> Recording:
    """Takes the rows out of a scanner."""
    names = tuple(name.decode("utf-8", "replace") for name in scanned.names())
    tables = {kind: _table(scanned, kind, names) for kind in _COLUMNS}
    collects = tables[PYTHON].strings("name").equals(COLLECTION)
    calls = Calls()
    return Recording(
        cpu=tables[CPU], marks=tables[MARK], runtime=tables[RUNTIME], device=tables[DEVICE],
        python=tables[PYTHON].take(~collects), collections=tables[PYTHON].take(collects),
        calls=tables[CALLS],
        arguments=tuple(map(calls.decoded, scanned.calls())),
        threads=tuple(map(plain, scanned.threads())),
        main=_main(tables[MARK], tables[CPU], scanned.first_thread),
        on_device=scanned.first_device,
        full=scanned.full or calls.full,
    )  # fmt: skip


def _table(scanned: Scanner, kind: str, names: tuple[str, ...]) -> Table:
    taken = scanned.take(kind)
    columns: dict[str, Column] = {
        name: np.frombuffer(taken[name], np.int64) for name in _COLUMNS[kind] if name != "name"
    }
    if "name" in _COLUMNS[kind]:
        columns["name"] = Strings(np.frombuffer(taken["name"], np.int32), names)
    return Table(columns)


def _main(marks: Table, operators: Table, first: int) -> int:
    """The training thread; else the process's first thread; else the busiest."""
    training = [t.take(named(t, PROFILER_STEP, OPTIMIZER_STEP, LOADER)) for t in
                (marks, operators)]  # fmt: skip
    for table in (*training, *(() if first >= 0 else (operators,))):
        if len(table):
            return int(np.argmax(np.bincount(table.ints("thread"))))
    return first
