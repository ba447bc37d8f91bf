"""Dumps of all ranks into one Window.

Lossy: of all stacks only each rank's newest is kept. `start_ns` and `end_ns` are left out, as the
recorder does not know them: its times of start and completion are those at which a watchdog next
looked, up to a second late, from which nobody should fit clocks. The column `state` says the same
without the times. Columns of our own beside the contract's:

    call            the recorder's name of the operator, `_all_gather_base`
    given, taken    elements that went in and came out; null where not known
    dtype_given, dtype_taken, shape    types of both sides, and the side that counts as text
    seen, retired   state and retirement as recorded. Gloo never says more than `scheduled`, but
                    retires what has ended, well or not: such rows are `done`
    record          the recorder's running number; a rank that begins above 0 lost older ones
    timeout_ms      after which the operator fails, 0 if unknown
    dumped_ns       the file's time of change: the dump was written then or, if copied, before
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from stepscope.formats.flight_recorder.dump import Dump, Entry, Tensors, stack_of
from stepscope.formats.flight_recorder.files import Found
from stepscope.formats.flight_recorder.groups import Groups, find_groups
from stepscope.trace import NO_PEER, UNKNOWN_PEER, Host, Job, ProcessGroup
from stepscope.window import NULL, Column, Strings, Table, Window

TEXTS = ("group", "op", "state", "call", "dtype_given", "dtype_taken", "shape", "seen")
FAITHFUL = ("nccl", "ncclx", "rccl", "rcclx", "xccl", "hccl", "mccl")
"""Libraries whose recorders tell states by events on the device; others only retire."""
SCATTERS = ("Scatter",)
"""What goes out counts, as in collected jobs: the members give nothing to the root."""


def assemble(name: str, dumps: Mapping[int, Dump], where: Mapping[int, Found]) -> Window:
    """The Window of a job from its ranks' dumps."""
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
) -> Iterator[dict[str, Any]]:
    dumped_ns = _changed_ns(file)
    sent: dict[str, int] = {}
    for entry in dump.entries:
        group = groups.by_name[rank, entry.group]
        seq = entry.seq
        if entry.is_p2p:
            seq = sent[entry.group] = sent.get(entry.group, 0) + 1
        counts = entry.taken if entry.op in (*SCATTERS, "Recv") else entry.given
        yield {
            "rank": rank, "group": group.id, "seq": seq, "op": entry.op,
            "peer": _peer(entry, group), "bytes": _or_null(counts.bytes),
            "enqueue_ns": entry.created_ns, "state": _state(entry, retires), "call": entry.call,
            "given": _or_null(_numel(entry.given)), "taken": _or_null(_numel(entry.taken)),
            "dtype_given": entry.given.dtype, "dtype_taken": entry.taken.dtype,
            "shape": counts.shape or entry.taken.shape, "seen": entry.seen,
            "retired": entry.retired, "record": entry.record, "timeout_ms": entry.timeout_ms,
            "dumped_ns": dumped_ns,
        }  # fmt: skip


def _changed_ns(file: Found) -> int:
    try:
        return file.path.stat().st_mtime_ns
    except OSError:
        return NULL


def _peer(entry: Entry, group: ProcessGroup) -> int:
    """Recorders write ranks within the group; the contract wants global ones."""
    if entry.op not in ("Send", "Recv"):
        return NO_PEER
    return group.ranks[entry.peer] if 0 <= entry.peer < len(group.ranks) else UNKNOWN_PEER


def _state(entry: Entry, retires: bool) -> str | None:
    """`scheduled` of a recorder that never says more and retires nothing means nothing."""
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


def _table(rows: list[dict[str, Any]]) -> Table:
    columns: dict[str, Column] = {}
    for name in rows[0] if rows else ():
        values = [row[name] for row in rows]
        if name in TEXTS:
            columns[name] = Strings.of(values)
        else:
            numbers = np.array(values, np.int64)
            columns[name] = numbers.astype(np.bool_) if name == "retired" else numbers
    return Table(columns)


def _stacks(dumps: Mapping[int, Dump]) -> Table:
    """Where every rank was when it called its newest operator of which a stack was kept."""
    rows = [
        {"rank": rank, "thread": "MainThread", "start_ns": entry.created_ns, "duration_ns": 0,
         "frames": frames}
        for rank in sorted(dumps)
        for entry, frames in _newest_stack(dumps[rank])
    ]  # fmt: skip
    columns: dict[str, Column] = {}
    for name in rows[0] if rows else ():
        values: list[Any] = [row[name] for row in rows]
        texts = name in ("thread", "frames")
        columns[name] = Strings.of(values) if texts else np.array(values, np.int64)
    return Table(columns)


def _newest_stack(dump: Dump) -> Iterator[tuple[Entry, str]]:
    for entry in reversed(dump.entries):
        frames = stack_of(entry.frames)
        if frames:
            yield entry, frames
            return
