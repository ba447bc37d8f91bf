"""The communication operators of one rank: NCCL kernels on the device, gloo calls on the CPU.

`launching` collects what is known of a kernel. Torch's gloo records no group names: `gloo` finds
them when all ranks are read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.formats.kineto.calls import (
    NOTHING,
    PARAMETERS,
    Call,
    call_by_name,
    operator_of,
)
from stepscope.formats.kineto.groups import DEFAULT, Known, groups_of, process_group, with_peers
from stepscope.formats.kineto.launches import (
    Launched,
    communication_kernels,
    launched_by,
    library_kernels,
)
from stepscope.formats.kineto.launching import ENQUEUES, OF_DEVICE, said_of
from stepscope.formats.kineto.recording import Recording
from stepscope.formats.kineto.spans import ends, named
from stepscope.trace import NO_PEER, UNKNOWN_PEER, ProcessGroup
from stepscope.window import NULL, Ints, Strings, Table, joined

ON_CPU = ("gloo:", "mpi:", "ucc:")
TALKS = (ENQUEUES, "c10d_functional", "_c10d_functional", *ON_CPU, *OF_DEVICE, PARAMETERS)
"""Beginnings of the names of operators that communicate, or wait for communication."""


@dataclass(frozen=True)
class Communication:
    """The table without rank and step, its groups, and whether groups were guessed.

    The step of a row is that of its `counted_ns`; NULL: it was launched before the recording.
    """

    table: Table | None
    groups: tuple[ProcessGroup, ...] = ()
    guessed: bool = False


def communication(recorded: Recording, of: Launched, known: Known) -> Communication:
    """All communication operators of the recording, in order of their host calls."""
    parts = [_device(recorded, of, known), _cpu(recorded, known)]
    if not len(recorded.device) and not any(len(part.table or ()) for part in parts):
        parts.append(_calls_only(recorded, known))
    tables = [part.table for part in parts if part.table is not None and len(part.table)]
    if not tables:
        return Communication(None)
    table = joined(tables)
    table = table.take(np.argsort(table.ints("enqueue_ns"), kind="stable"))
    groups = tuple(dict.fromkeys(group for part in parts for group in part.groups))
    return Communication(table, groups, any(part.guessed for part in parts))


def _device(recorded: Recording, of: Launched, known: Known) -> Communication:
    asked = launched_by(recorded.device, of.launch_ns)
    rows = np.flatnonzero(communication_kernels(recorded.device))
    rows = rows[np.lexsort((recorded.device.ints("correlation")[rows], asked[rows]))]
    said = said_of(recorded, recorded.device.take(rows), of.launch_ns[rows])
    rows = rows[said.kernel]
    device, counted = recorded.device.take(rows), of.counted_ns[rows]
    streams = device.ints("stream")
    streams = np.where(library_kernels(device), streams, -1 - streams)
    groups, guessed = groups_of(said.calls, known, streams, counted)
    return _table(
        [call.op for call in said.calls], with_peers(said.calls, groups, known), groups, guessed,
        enqueue_ns=asked[rows], counted_ns=counted, start_ns=device.ints("start_ns"),
        end_ns=ends(device),
        blocked_ns=np.full(rows.size, NULL), thread=np.full(rows.size, NULL),
        sequence=said.sequence,
    )  # fmt: skip


def _of(calls: Table, column: str, rows: Ints, missing: int) -> Ints:
    """Values of the given rows of `calls`; `missing` for negative rows."""
    if not len(calls):
        return np.full(rows.shape, missing)
    return np.where(rows >= 0, calls.ints(column)[rows], missing)


def _known_or(values: Ints, unknown: int, others: Ints) -> Ints:
    return np.where(values == unknown, others, values)


def _looked_up(recorded: Recording, codes: Ints) -> list[Call]:
    return [recorded.arguments[code] if code >= 0 else NOTHING for code in codes.tolist()]


def _cpu(recorded: Recording, known: Known) -> Communication:
    """Calls that run on the CPU: the annotation is the execution, `c10d::` the host's call."""
    work = recorded.calls.take(named(recorded.calls, *ON_CPU))
    called = recorded.calls.take(named(recorded.calls, "c10d::"))
    ops = _ops(work)
    caller = _in_order(ops, _ops(called))
    calls = _looked_up(recorded, work.ints("call"))
    start = work.ints("start_ns")
    values = _looked_up(recorded, called.ints("call"))
    calls = [_with_peer(call, op, values[at].third if at >= 0 else NULL)
             for call, op, at in zip(calls, ops, caller.tolist(), strict=True)]  # fmt: skip
    groups, threads = _gloo_groups(recorded, work, ops, known)
    asked = np.minimum(_known_or(_of(called, "start_ns", caller, NULL), NULL, start), start)
    return _table(
        ops, calls, groups, False, thread=threads, enqueue_ns=asked, counted_ns=asked,
        start_ns=start, end_ns=ends(work),
        blocked_ns=np.zeros(len(work), np.int64), sequence=work.ints("sequence"),
    )  # fmt: skip


def _ops(calls: Table) -> list[str | None]:
    names = calls.strings("name")
    return [operator_of(names[at] or "") for at in range(len(calls))]


def _in_order(ops: list[str | None], asked: list[str | None]) -> Ints:
    """Matches the k-th call of an operator with its k-th execution, if there are as many."""
    caller = np.full(len(ops), -1)
    for op in set(ops):
        work = [at for at, one in enumerate(ops) if one == op]
        calls = [at for at, one in enumerate(asked) if one == op]
        if len(work) == len(calls):
            caller[work] = calls
    return caller


def _with_peer(call: Call, op: str | None, third: int) -> Call:
    """The third argument of `c10d::send` and `c10d::recv_` is the other rank."""
    known = op in ("Send", "Recv") and third >= 0
    return replace(call, peer=third) if known else call


def _gloo_groups(
    recorded: Recording, work: Table, ops: list[str | None], known: Known
) -> tuple[list[ProcessGroup | None], Ints]:
    """The groups of gloo's calls, and the system's ids of their threads where the group is unknown
    (see `gloo`): NULL elsewhere, negative if the thread has only a name."""
    world = process_group(known.groups[0], known.world_size) if known.groups else DEFAULT
    p2p = np.array([op in ("Send", "Recv") for op in ops], np.bool_)
    told = p2p | (len(known.groups) < 2)
    ids = np.array([one if isinstance(one, int) and 0 <= one < 1 << 63 else -1 - code
                    for code, one in enumerate(recorded.threads)] or [0], np.int64)  # fmt: skip
    threads = np.where(told, NULL, ids[work.ints("thread")])
    return [world if one else None for one in told.tolist()], threads


def _calls_only(recorded: Recording, known: Known) -> Communication:
    """NCCL's calls if the device was not recorded: their end is unknown."""
    calls = recorded.calls.take(named(recorded.calls, *OF_DEVICE))
    ops, names = _ops(calls), calls.strings("name")
    said = [call.completed(call_by_name(names[at] or ""))
            for at, call in enumerate(_looked_up(recorded, calls.ints("call")))]  # fmt: skip
    start = calls.ints("start_ns")
    groups, guessed = groups_of(said, known, np.zeros(len(calls), np.int64), start)
    unknown = np.full(len(calls), NULL)
    return _table(
        ops, with_peers(said, groups, known), groups, guessed,
        enqueue_ns=start, counted_ns=start, start_ns=unknown, end_ns=unknown,
        blocked_ns=unknown, thread=unknown, sequence=calls.ints("sequence"),
    )  # fmt: skip


def _table(
    ops: list[str | None], calls: list[Call], groups: list[ProcessGroup | None], guessed: bool,
    **columns: Ints,
) -> Communication:  # fmt: skip
    """The table of rows with a known operator."""
    keep = np.array([op is not None for op in ops], np.bool_)
    table = Table({
        **columns,
        "op": Strings.of(ops),
        "group": Strings.of([group.id if group else None for group in groups]),
        "peer": np.array([_peer(op, call) for op, call in zip(ops, calls, strict=True)], np.int64),
        "bytes": np.array([call.size_bytes for call in calls], np.int64),
        "place": np.array([call.pair[0] if call.pair else NULL for call in calls], np.int64),
        "partner": np.array([call.pair[1] if call.pair else NULL for call in calls], np.int64),
        "state": Strings(np.zeros(len(ops), np.int32), ("done",)),
    })  # fmt: skip
    named_groups = tuple(dict.fromkeys(group for group in groups if group is not None))
    return Communication(table.take(keep), named_groups, guessed and bool(keep.any()))


def _peer(op: str | None, call: Call) -> int:
    if op not in ("Send", "Recv"):
        return NO_PEER
    return call.peer if call.peer >= 0 else UNKNOWN_PEER
