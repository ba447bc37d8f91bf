"""The tracks of one rank: steps, phases, operators, kernels, stacks and counters.

Perfetto sorts the tracks of a process by name, capitals first; so `Steps` comes before `stream 7`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b

import numpy as np

from stepscope.perfetto.communication import communication
from stepscope.perfetto.packets import STEP
from stepscope.perfetto.slices import Counter, Slices, Track, ends
from stepscope.perfetto.stacks import nested
from stepscope.window import NULL, Floats, Ints, Mask, Strings, Table

MAIN_THREAD = "MainThread"
PHASE_DETAILS = ("step", "microbatch", "wait_ns", "cpu_ns", "waits", "host_start_ns")
STEPS, PHASES, PAUSES, STREAM, UNKNOWN_STREAM, OPERATORS, STACK_OF, COUNTERS = (
    "Steps", "Phases", "pauses", "stream ", "unknown stream", "operators", "stack of ", "counters"
)  # fmt: skip
"""Names of tracks, or how they begin."""
OF_THREAD, UNKNOWN_THREAD = " of thread ", "unknown thread"
_ARROW = "arrow"
MOST_COUNTERS = 64
"""Most counters of one process; a host of 256 CPUs has as many for these alone."""
MOST_VALUES = 20_000
"""Most values of one counter; beyond it the lowest and highest of each bucket are kept."""
_SMALL = 1 << 12
_UNITS = (
    ("_bytes_per_s", "B/s"), ("_bytes", "B"), ("_cpu_ns", "ns"), ("_mhz", "MHz"), ("_c", "°C"),
    ("_w", "W"),
)  # fmt: skip


def rank_tracks(tables: Mapping[str, Table], until_ns: int) -> Iterator[Track]:
    """The tracks of one rank's rows, without stacks and counters."""
    if (steps := _drawn(tables, "steps", "step")) is not None:
        yield Track(STEPS, _intervals(steps, _step_names(steps.ints("step")), "host_ns"))
    if (phases := _drawn(tables, "phases", "phase")) is not None:
        yield Track(PHASES, _intervals(phases, phases.strings("phase"), *PHASE_DETAILS))
    if (pauses := _drawn(tables, "pauses", "kind")) is not None:
        yield Track(PAUSES, _intervals(pauses, pauses.strings("kind"), "step"))
    comm = tables.get("comm_ops")
    if comm is not None and comm.has("group", "op", "seq", "enqueue_ns"):
        yield from communication(comm, until_ns)
    if (kernels := _drawn(tables, "kernels", "kernel", "stream")) is not None:
        kernels = _with_arrows(kernels)
        for stream, rows in split(kernels, kernels.ints("stream")):
            name = UNKNOWN_STREAM if stream == NULL else f"{STREAM}{stream}"
            yield Track(name, _kernels(rows))
        if kernels.has("enqueue_ns"):
            yield Track("launches", _launches(kernels))
    if (operators := _drawn(tables, "host_ops", "name", "thread")) is not None:
        for thread, rows in split(operators, operators.ints("thread")):
            slices = _intervals(rows, rows.strings("name"), "step")
            yield Track(f"{OPERATORS}{OF_THREAD}{thread}" if thread >= 0 else OPERATORS, slices)


def stack_tracks(tables: Mapping[str, Table]) -> Iterator[Track]:
    """The call stacks of the main thread, or of all threads if none has that name."""
    stacks = _drawn(tables, "stacks", "thread", "frames")
    if stacks is None:
        return
    threads = stacks.strings("thread")
    main = threads.equals(MAIN_THREAD)
    if main.any():
        stacks, threads = stacks.take(main), threads.take(main)
    for code, rows in split(stacks, threads.codes.astype(np.int64)):
        name = threads.values[code] if code >= 0 else UNKNOWN_THREAD
        yield Track(f"{STACK_OF}{name}", nested(rows))


def counters(hardware: Table | None) -> Iterator[Counter]:
    """The metrics of one rank or host; those of single CPUs come last."""
    if hardware is None or not hardware.has("metric", "ts_ns", "value"):
        return
    metric = hardware.strings("metric")
    named = [(".core" in metric.values[code], metric.values[code], code)
             for code in np.unique(metric.codes).tolist() if code >= 0]  # fmt: skip
    for _, name, code in sorted(named)[:MOST_COUNTERS]:
        yield _counter(name, hardware.take(metric.codes == code))


def split(table: Table, column: Ints) -> Iterator[tuple[int, Table]]:
    """Splits rows by the few values of a column, smallest first; rows keep their order."""
    for value in _distinct(column):
        yield value, table.take(np.flatnonzero(column == value))


def _distinct(column: Ints) -> list[int]:
    """The distinct values in order. Small ranges, as stream numbers mostly have, are counted, which
    takes a tenth of the time."""
    if not column.size:
        return []
    lowest, highest = int(column.min()), int(column.max())
    if highest - lowest >= _SMALL:
        found: list[int] = np.unique(column).tolist()
        return found
    return (np.flatnonzero(np.bincount(column - lowest)) + lowest).tolist()


def _drawn(tables: Mapping[str, Table], name: str, *columns: str) -> Table | None:
    """The table if it has rows and the columns that drawing requires."""
    table = tables.get(name)
    if table is None or not len(table):
        return None
    return table if table.has("start_ns", "duration_ns", *columns) else None


def _intervals(rows: Table, names: Strings, *details: str) -> Slices:
    start = rows.ints("start_ns")
    columns = {name: rows.ints(name) for name in details if rows.has(name)}
    return Slices(start, ends(start, rows.ints("duration_ns")), names, columns)


def _step_names(step: Ints) -> Strings:
    values, codes = np.unique(step, return_inverse=True)
    names = tuple("step" if value == NULL else f"{STEP}{value}" for value in values.tolist())
    return Strings(codes.astype(np.int32), names)


def _kernels(rows: Table) -> Slices:
    """Kernels with their queueing time and an arrow from their launch, if that is known."""
    slices = _intervals(rows, rows.strings("kernel"))
    if not rows.has("enqueue_ns"):
        return slices
    launched, known = rows.ints("enqueue_ns"), _launched(rows)
    queued = np.where(known, slices.start_ns - np.where(known, launched, 0), NULL)
    return replace(slices, details={"queued_ns": queued}, flow=rows.ints(_ARROW))


def _launches(rows: Table) -> Slices:
    """When the host launched each kernel; how long the call took is not recorded."""
    rows = rows.take(_launched(rows))
    at = rows.ints("enqueue_ns")
    return Slices(at, at, rows.strings("kernel"), flow=rows.ints(_ARROW))


def _launched(rows: Table) -> Mask:
    launched = rows.ints("enqueue_ns")
    return (launched >= 0) & (rows.ints("start_ns") >= launched)


def _with_arrows(kernels: Table) -> Table:
    """Numbers each kernel uniquely, also across joined files: consecutive numbers that start at a
    hash of the first kernel, because random numbers would not compress."""
    first = f"{kernels.ints('rank')[0]} {kernels.ints('start_ns')[0]} {len(kernels)}"
    begin = int.from_bytes(blake2b(first.encode(), digest_size=8).digest(), "big", signed=True)
    return kernels.with_column(_ARROW, np.arange(len(kernels)) + np.int64(begin))


def _counter(name: str, rows: Table) -> Counter:
    counter = Counter(name, _unit(name), rows.ints("ts_ns"), rows.floats("value")).drawable()
    order = np.argsort(counter.time_ns, kind="stable")
    kept = order[_extremes(counter.value[order], MOST_VALUES)]
    return Counter(name, counter.unit, counter.time_ns[kept], counter.value[kept])


def _unit(metric: str) -> str:
    base = metric.partition(".")[0]
    return next((unit for ending, unit in _UNITS if base.endswith(ending)), "")


def _extremes(values: Floats, limit: int) -> Ints:
    """Rows of the lowest and highest value in each of `limit / 2` buckets; all if they fit."""
    if values.size <= limit:
        return np.arange(values.size)
    edges = np.linspace(0, values.size, limit // 2 + 1).astype(np.int64)
    rows = [edge + place for edge, stop in itertools.pairwise(edges.tolist())
            for place in (values[edge:stop].argmin(), values[edge:stop].argmax())]  # fmt: skip
    return np.unique(np.array(rows, np.int64))
