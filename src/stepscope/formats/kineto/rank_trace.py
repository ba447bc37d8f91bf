"""Reads one file into the tables of one rank: the unit of work of a process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.errors import FormatError
from stepscope.formats.contents import Advance, Contents
from stepscope.formats.kineto.calls import Group, whole
from stepscope.formats.kineto.comm import communication
from stepscope.formats.kineto.compiled import Scanner
from stepscope.formats.kineto.computing import computing, in_progress
from stepscope.formats.kineto.document import Document
from stepscope.formats.kineto.groups import Known, process_group
from stepscope.formats.kineto.launches import Launched, began, launched
from stepscope.formats.kineto.names import PROFILER_STEP
from stepscope.formats.kineto.patterns import activity, long_calls, patterns, step_numbers, window
from stepscope.formats.kineto.phases import busy_host, phases, waited
from stepscope.formats.kineto.plain import plain
from stepscope.formats.kineto.recording import Recording, recording, scanner
from stepscope.formats.kineto.spans import ends, named, outermost
from stepscope.formats.kineto.stacks import stacks
from stepscope.formats.kineto.steps import Steps, find_steps
from stepscope.formats.limits import MOST_RANKS
from stepscope.patterns import Activity, Span
from stepscope.trace import ProcessGroup
from stepscope.window import NULL, Column, Ints, Strings, Table, union

_TIMES = ("start_ns", "end_ns", "enqueue_ns", "window_start_ns", "counted_ns")
_LATEST_NS = 2**62
GUESSED = (
    "some collectives lack their group; those of one stream are taken as one group of the ranks "
    "that leave them together"
)


@dataclass(frozen=True)
class RankTrace:
    """The contents of one file; the column `rank` is added later."""

    path: Path
    name: str
    """The file's name in messages."""
    rank: int | None
    world_size: int | None
    host: str | None
    device: int
    """The number of the rank's device; -1 if unknown."""
    devices: int
    """How many devices the process sees; 0 if unknown."""
    groups: tuple[ProcessGroup, ...]
    configured: tuple[ProcessGroup, ...]
    """The groups that the trace lists, in the order in which the process made them."""
    tables: dict[str, Table]
    steps_found_by: str
    """How steps were found; empty if the trace marks them, or has none."""
    span_ns: tuple[int, int]
    base_ns: int
    """The base of the file's times, already added; 0: 1970, or unknown."""
    problems: tuple[str, ...]
    complete: bool = True
    """Whether the whole file was read: not truncated, no event left out."""


@dataclass(frozen=True)
class _Header:
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    base_ns: int = 0
    groups: tuple[Group, ...] = ()
    devices: int = 0


def read_file(path: Path, advance: Advance = lambda _: None) -> RankTrace:
    """Reads one trace.

    Raises:
        FormatError: it has nothing that can be used.
        SourceError: it cannot be read.
    """
    return _rank_trace(path, *_read(path, advance))


@dataclass(frozen=True)
class RankActivity:
    """The events of one file, for the patterns of its functions; times are since 1970."""

    activity: Activity
    span: Span
    steps: tuple[int, int] | None
    """The numbers of the first and the last step."""
    problems: tuple[str, ...]


def read_activity(path: Path) -> RankActivity:
    """Reads only the events of one trace; raises what `read_file` does."""
    recorded, header, problems = _read(path, lambda _: None)
    steps = find_steps(recorded, recorded.cpu.take(outermost(recorded.cpu)))
    span = window(recorded, steps, _span(recorded, 0), launched(recorded))
    return RankActivity(
        activity(recorded).later(header.base_ns), span.later(header.base_ns),
        step_numbers(steps), problems,
    )  # fmt: skip


def _read(path: Path, advance: Advance) -> tuple[Recording, _Header, tuple[str, ...]]:
    contents = Contents(path, advance)
    document, scanned = Document(contents), scanner()
    document.read(scanned)
    recorded = recording(scanned)
    problems = _problems(contents, document, scanned, recorded)
    if not scanned.kept:
        raise FormatError(f"{path}: {_nothing(path, document, problems)}")
    return recorded, _header(document), tuple(problems)


def _problems(
    contents: Contents, document: Document, scanned: Scanner, recorded: Recording
) -> list[str]:
    found = [contents.problem] if contents.problem else []
    if scanned.oversized:
        found.append("one event is longer than any real event; reading stopped there")
    elif recorded.full:
        found.append("too many events; reading stopped, the rest is ignored")
    elif document.found and not scanned.closed and not found:
        found.append("it is truncated; complete events are used")
    if scanned.unreadable:
        found.append(f"{scanned.unreadable} events cannot be decoded and are left out")
    if scanned.impossible:
        found.append(f"{scanned.impossible} events with impossible times are left out")
    return found


def _nothing(path: Path, document: Document, problems: list[str]) -> str:
    if path.stat().st_size == 0:
        return "the file is empty"
    if problems:
        return f"{problems[0]}, and no event before that can be used"
    if not document.found:
        return "not a PyTorch profiler trace: it has no list traceEvents"
    return "it has no event of a PyTorch profiler"


def _header(document: Document) -> _Header:
    """The metadata from before and after the events."""
    metadata: dict[str, Any] = {}
    for frame in document.frames():
        for name, text in frame.items():
            value = plain(text)
            if value:
                metadata.setdefault(name, value)
    info = metadata.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    rank, world = whole(info.get("rank")), whole(info.get("world_size"))
    base, host = metadata.get("baseTimeNanoseconds"), metadata.get("host_name")
    return _Header(
        rank if 0 <= rank < MOST_RANKS else None,
        world if 0 < world <= MOST_RANKS else None,
        host if isinstance(host, str) and host else None,
        base if isinstance(base, int) and 0 <= base < _LATEST_NS else 0,
        _configured(info.get("pg_config")),
        len(seen) if isinstance(seen := metadata.get("deviceProperties"), list) else 0,
    )


def _configured(config: Any) -> tuple[Group, ...]:
    """The groups of `pg_config` with listed members."""
    groups = []
    for entry in config if isinstance(config, list) else ():
        ranks = entry.get("ranks") if isinstance(entry, dict) else None
        if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks):
            name, words = str(entry.get("pg_name", "")), str(entry.get("pg_desc") or "")
            groups.append(Group(name, words, tuple(ranks)))
    return tuple(groups)


def _rank_trace(
    path: Path, recorded: Recording, header: _Header, problems: tuple[str, ...]
) -> RankTrace:
    operators = recorded.cpu.take(outermost(recorded.cpu))
    marked, of = find_steps(recorded, operators), launched(recorded)
    steps = _executed(recorded, marked, of) if problems else marked
    known = Known(header.rank, header.world_size or 0, header.groups)
    comm = communication(recorded, of, known)
    # where a device was recorded, communication in progress does not block the host
    own = computing(recorded.cpu, in_progress(None if len(recorded.device) else comm.table))
    tables = {
        "steps": _steps_table(recorded, steps, of),
        "phases": phases(recorded, operators, own, steps, of.launch_ns, comm.table),
        "kernels": _kernels(recorded, steps, of),
        "comm_ops": _comm_ops(recorded, own, steps, comm.table),
        "stacks": stacks(recorded),
        "pauses": _pauses(recorded, steps),
        "host_ops": _host_ops(recorded, own, steps),
        # shares of fewer steps than the other ranks' are no measure
        "patterns": patterns(recorded, steps, _span(recorded, 0), of)
        if steps.number.size == marked.number.size else None,
    }  # fmt: skip
    complete = not problems
    if comm.guessed:
        problems += (GUESSED,)
    if not steps.number.size:
        problems += ("no training steps were found",)
    configured = tuple(process_group(group, known.world_size) for group in header.groups)
    return RankTrace(
        path, path.name, header.rank, header.world_size, header.host,
        recorded.on_device, header.devices,
        tuple(dict.fromkeys((*configured, *comm.groups))), configured,
        {name: moved(table, header.base_ns) for name, table in tables.items()
         if table is not None and len(table)},
        steps.found_by, _span(recorded, header.base_ns), header.base_ns, problems, complete,
    )  # fmt: skip


def _executed(recorded: Recording, steps: Steps, of: Launched) -> Steps:
    """Without the steps from which on a damaged file lacks what the device did: hosts run ahead, so
    the marks of steps reach further than their kernels. The first step always stays, unless all
    that the device did is lost: the host alone would seem to do the work."""
    if len(recorded.runtime) and not len(recorded.device):
        return steps.until(0)
    at = steps.places(of.counted_ns)
    kernels = np.bincount(at[at >= 0], minlength=steps.number.size)
    last = int(np.flatnonzero(kernels)[-1]) if kernels.any() else steps.number.size - 1
    cut = last > 0 and kernels[last] < np.median(kernels[:last])
    return steps.until(max(last if cut else last + 1, 1))


def _steps_table(recorded: Recording, steps: Steps, of: Launched) -> Table:
    """The steps as they were executed.

    A step ends with the last kernel that was launched in it, and the next one begins then, or when
    the host begins it, whichever is later. What the device does before the first step is of steps
    that were not recorded.
    """
    start, end = steps.start_ns.copy(), np.maximum(steps.end_ns, _device_ends(recorded, steps, of))
    if start.size:
        start[0] = began(recorded, steps, of)
        start[1:] = np.maximum(start[1:], np.maximum.accumulate(end)[:-1])
    table = Table({
        "step": steps.number, "start_ns": start,
        "duration_ns": np.maximum(end - start, 0),
    })  # fmt: skip
    launches = len(recorded.device) and len(recorded.runtime)
    return table.with_column("host_ns", _host_works(recorded, steps)) if launches else table


def _host_works(recorded: Recording, steps: Steps) -> Ints:
    """How long the host works on each step: without long calls of the runtime, as far as the device
    works meanwhile. What remains of such a call, as of freeing memory, the device waits for."""
    calls, begin, end = long_calls(recorded), steps.start_ns, steps.end_ns
    long = union(calls.ints("start_ns"), ends(calls))
    alone = long.without(recorded.device_works)
    return end - begin - long.within(begin, end) + alone.within(begin, end)


def _device_ends(recorded: Recording, steps: Steps, of: Launched) -> Ints:
    """When the device ended each step; NULL where nothing was launched in it."""
    last = np.full(steps.number.size, NULL)
    at = steps.places(of.counted_ns)
    np.maximum.at(last, at[at >= 0], ends(recorded.device)[at >= 0])
    return last


def _kernels(recorded: Recording, steps: Steps, of: Launched) -> Table:
    return Table({
        "step": steps.of(of.counted_ns),
        "kernel": _used(recorded.device.strings("name")),
        "stream": recorded.device.ints("stream"),
        "enqueue_ns": of.launch_ns,
        "start_ns": recorded.device.ints("start_ns"),
        "duration_ns": recorded.device.ints("duration_ns"),
    })  # fmt: skip


def _comm_ops(recorded: Recording, own: Table, steps: Steps, comm: Table | None) -> Table | None:
    if comm is None:
        return None
    comm = comm.with_column("step", steps.of(comm.ints("counted_ns")))
    if len(recorded.device) or (comm.ints("end_ns") == NULL).any():
        return Table({name: c for name, c in comm.columns.items() if name != "blocked_ns"})
    return comm.with_column("blocked_ns", _blocked(recorded, own, comm))


def _blocked(recorded: Recording, own: Table, comm: Table) -> Ints:
    """How long the host blocked in each operator; overlapping time counts for the earlier one."""
    start, end = comm.ints("start_ns"), comm.ints("end_ns")
    order = np.argsort(start, kind="stable")
    reach = np.maximum.accumulate(end[order])
    begin = np.maximum(start[order], np.concatenate(([NULL], reach[:-1])))
    rows = Table({"start_ns": begin, "end_ns": np.maximum(end[order], begin)})
    blocked = np.zeros(len(comm), np.int64)
    blocked[order] = waited(rows, busy_host(recorded, own), comm)
    return blocked


def _host_ops(recorded: Recording, own: Table, steps: Steps) -> Table:
    operators = own.take(~named(own, PROFILER_STEP))
    threads = np.array([_thread(name) for name in recorded.threads] or [0], np.int64)
    return Table({
        "step": steps.of(operators.ints("start_ns")),
        "name": _used(operators.strings("name")),
        "thread": threads[operators.ints("thread")],
        "start_ns": operators.ints("start_ns"),
        "duration_ns": operators.ints("duration_ns"),
    })  # fmt: skip


def _pauses(recorded: Recording, steps: Steps) -> Table:
    """Garbage collections, as the recorder inside a process writes them."""
    begin = recorded.collections.ints("start_ns")
    return Table({
        "step": steps.of(begin),
        "kind": Strings(np.zeros(begin.size, np.int32), ("gc",)),
        "start_ns": begin,
        "duration_ns": recorded.collections.ints("duration_ns"),
    })  # fmt: skip


def _thread(name: Any) -> int:
    number = whole(name)
    return number if number != NULL else -1


def _used(strings: Strings) -> Strings:
    """Drops values that do not occur."""
    used, codes = np.unique(strings.codes, return_inverse=True)
    return Strings(codes.astype(np.int32), tuple(strings.values[code] for code in used.tolist()))


def moved(table: Table, base_ns: int) -> Table:
    """Converts times since the trace's base to times since 1970."""
    columns: dict[str, Column] = dict(table.columns)
    for name in _TIMES:
        if table.has(name):
            times = table.ints(name)
            columns[name] = np.where(times == NULL, NULL, times + base_ns)
    return Table(columns)


def _span(recorded: Recording, base_ns: int) -> tuple[int, int]:
    tables = [
        t
        for t in (recorded.cpu, recorded.marks, recorded.runtime, recorded.device, recorded.python)
        if len(t)
    ]
    first = min(int(table.ints("start_ns")[0]) for table in tables)
    last = max(int(ends(table).max()) for table in tables)
    return first + base_ns, last + base_ns
