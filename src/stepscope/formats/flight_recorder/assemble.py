"""Assembles the dumps of all ranks into one Window.

Lossy: only the newest stack of each rank is kept. `start_ns` and `end_ns` are left out: recorded
times of start and completion are those of the watchdog's next check, up to a second late, and
useless for fitting clocks. The column `state` has the same information without times. Columns
beyond the contract:

    call            the recorder's name of the operator, `_all_gather_base`
    given, taken    numbers of input and output elements; null if unknown
    dtype_given, dtype_taken, shape    types of inputs and outputs, and the shape that counts
    seen, retired   state and retirement as recorded. Gloo never records more than `scheduled`, but
                    retires operators that have ended or failed: such rows are `done`
    record          the recorder's running number; a rank that begins above 0 lost older entries
    unrecorded      operators without an entry that the rank called in the group since its previous
                    entry there, by the recorder's own count: gloo's sends and receives. Null of
                    the first entry, and if the recorder does not count
    number          the recorder's count of the rank's operators in the group; 0 if unknown
    timeout_ms      after which the operator fails; 0 if unknown
    batch           `record` of the entry that ends the row's batch, else the row's own
    noticed_ns      when the watchdog noticed that it had ended; null if it did not
    dumped_ns       modification time of the file: the dump was written then or, if copied, before
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from stepscope.formats.flight_recorder.dump import Dump, Entry, Tensors
from stepscope.formats.flight_recorder.files import Found
from stepscope.formats.flight_recorder.groups import Groups, find_groups
from stepscope.trace import NO_PEER, UNKNOWN_PEER, Host, Job, ProcessGroup
from stepscope.window import NULL, Column, Strings, Table, Window

COLUMNS = (
    "rank", "group", "seq", "op", "peer", "bytes", "enqueue_ns", "state", "call", "given", "taken",
    "dtype_given", "dtype_taken", "shape", "seen", "retired", "record", "timeout_ms", "dumped_ns",
    "unrecorded", "batch", "noticed_ns", "number",
)  # fmt: skip
TEXTS = ("group", "op", "state", "call", "dtype_given", "dtype_taken", "shape", "seen")
FAITHFUL = ("nccl", "ncclx", "rccl", "rcclx", "xccl", "hccl", "mccl")
"""Backends whose recorded states come from device events; others only retire operators."""
SCATTERS = ("Scatter",)
"""For these the output size counts, as in collected jobs: only the root has an input."""


def assemble(name: str, dumps: Mapping[int, Dump], where: Mapping[int, Found]) -> Window:
    """Assembles the Window of a job from its ranks' dumps."""
    groups = find_groups(dumps)
    job = Job(
        job_id=name, world_size=groups.world_size, hosts=_hosts(where), groups=groups.groups,
        recorded_ranks=tuple(sorted(dumps)),
    )  # fmt: skip
    retires = any(entry.retired for dump in dumps.values() for entry in dump.entries)
    rows = [row for rank in sorted(dumps)
            for row in _rows(rank, dumps[rank], where[rank], groups, retires)]  # fmt: skip
    tables = {"comm_ops": _table(rows), "stacks": _stacks(dumps)}
    return Window(job, {name: table for name, table in tables.items() if len(table)})


def _hosts(where: Mapping[int, Found]) -> tuple[Host, ...]:
    by_name: dict[str, list[int]] = {}
    for rank in sorted(where):
        host = where[rank].host
        if host:
            by_name.setdefault(host, []).append(rank)
    return tuple(Host(name, tuple(ranks)) for name, ranks in by_name.items())


def _rows(
    rank: int, dump: Dump, file: Found, groups: Groups, retires: bool
) -> Iterator[tuple[Any, ...]]:
    dumped_ns = _changed_ns(file)
    sent: dict[str, int] = {}
    counted: dict[str, int] = {}
    for entry in dump.entries:
        group = groups.by_name[rank, entry.group]
        seq = entry.seq
        if entry.is_p2p:
            seq = sent[entry.group] = sent.get(entry.group, 0) + 1
        counts = entry.taken if entry.op in (*SCATTERS, "Recv") else entry.given
        yield (
            rank, group.id, seq, entry.op, _peer(entry, group), _or_null(counts.bytes),
            entry.created_ns, _state(entry, retires), entry.call, _or_null(_numel(entry.given)),
            _or_null(_numel(entry.taken)), entry.given.dtype, entry.taken.dtype,
            counts.shape or entry.taken.shape, entry.seen, entry.retired, entry.record,
            entry.timeout_ms, dumped_ns, _unrecorded(entry, counted),
            entry.batch if entry.batch >= 0 else entry.record, entry.ended_ns or NULL,
            entry.op_id,
        )  # fmt: skip


def _unrecorded(entry: Entry, counted: dict[str, int]) -> int:
    """The operators since the group's previous entry; 0 of backends that record all of them."""
    before, counted[entry.group] = counted.get(entry.group, 0), entry.op_id
    if entry.backend in FAITHFUL:
        return 0
    if not 0 < before < entry.op_id:
        return NULL
    return entry.op_id - before - 1


def _changed_ns(file: Found) -> int:
    try:
        return file.path.stat().st_mtime_ns
    except OSError:
        return NULL


def _peer(entry: Entry, group: ProcessGroup) -> int:
    """The global rank of the peer; dumps have the rank within the group."""
    if entry.op not in ("Send", "Recv"):
        return NO_PEER
    return group.ranks[entry.peer] if 0 <= entry.peer < len(group.ranks) else UNKNOWN_PEER


def _state(entry: Entry, retires: bool) -> str | None:
    """The state; None for `scheduled` if a backend records nothing more and retires nothing."""
    if entry.seen == "completed":
        return "done"
    if entry.seen == "started" or entry.backend in FAITHFUL:
        return entry.seen
    if not retires:
        return None
    return "done" if entry.retired else "scheduled"


def _numel(tensors: Tensors) -> int | None:
    return tensors.numel if tensors.numel >= 0 and tensors.count else None


def _or_null(value: int | None) -> int:
    return NULL if value is None else value


def _table(rows: list[tuple[Any, ...]]) -> Table:
    columns: dict[str, Column] = {}
    for name, values in zip(COLUMNS, zip(*rows, strict=True), strict=False):
        if name in TEXTS:
            columns[name] = Strings.of(list(values))
        else:
            numbers = np.array(values, np.int64)
            columns[name] = numbers.astype(np.bool_) if name == "retired" else numbers
    return Table(columns)


def _stacks(dumps: Mapping[int, Dump]) -> Table:
    """The stack of every rank's newest call."""
    ranks = [rank for rank in sorted(dumps) if dumps[rank].stack]
    return Table({
        "rank": np.array(ranks, np.int64),
        "thread": Strings.of(["MainThread"] * len(ranks)),
        "start_ns": np.array([dumps[rank].stack_ns for rank in ranks], np.int64),
        "duration_ns": np.zeros(len(ranks), np.int64),
        "frames": Strings.of([dumps[rank].stack for rank in ranks]),
    })  # fmt: skip
