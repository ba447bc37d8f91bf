"""The communication operators of one rank: NCCL kernels on the device, gloo calls on the CPU.

A kernel's operator, size and group are in its own arguments or in the call that launched it, which
is found by its external id, else by the time and thread of the launch. Torch's gloo records no
group names: `gloo` finds them when all ranks are read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.formats.kineto.calls import (
    PARAMETERS,
    Call,
    Group,
    is_communication_kernel,
    operator_of,
)
from stepscope.formats.kineto.groups import DEFAULT, process_group
from stepscope.formats.kineto.recording import Recording
from stepscope.formats.kineto.spans import ends, latest_before, named
from stepscope.trace import NO_PEER, UNKNOWN_PEER, ProcessGroup
from stepscope.window import NULL, Ints, Mask, Strings, Table, distinct, joined

ON_CPU = ("gloo:", "mpi:", "ucc:")
OF_DEVICE = ("nccl:", "rccl:")
ENQUEUES = "c10d::"
"""Operators that start communication, and return at once, except:"""
BLOCKS = "c10d::monitored_barrier"
TALKS = (ENQUEUES, "c10d_functional", "_c10d_functional", *ON_CPU, *OF_DEVICE, PARAMETERS)
"""Beginnings of the names of operators that communicate, or wait for communication."""
_NOTHING = Call(None, NULL, None, NULL, NULL)


@dataclass(frozen=True)
class Known:
    """What the trace records about its job."""

    world_size: int
    groups: tuple[Group, ...]
    """In order of creation."""


@dataclass(frozen=True)
class Communication:
    """The table without rank and step, its groups, and whether groups were guessed."""

    table: Table | None
    groups: tuple[ProcessGroup, ...] = ()
    guessed: bool = False


def communication(recorded: Recording, launch_ns: Ints, known: Known) -> Communication:
    """All communication operators of the recording, in order of their host calls."""
    parts = [_device(recorded, launch_ns, known), _cpu(recorded, known)]
    if not len(recorded.device) and not any(len(part.table or ()) for part in parts):
        parts.append(_calls_only(recorded, known))
    tables = [part.table for part in parts if part.table is not None and len(part.table)]
    if not tables:
        return Communication(None)
    table = joined(tables)
    table = table.take(np.argsort(table.ints("enqueue_ns"), kind="stable"))
    groups = tuple(dict.fromkeys(group for part in parts for group in part.groups))
    return Communication(table, groups, any(part.guessed for part in parts))


def _device(recorded: Recording, launch_ns: Ints, known: Known) -> Communication:
    rows = np.flatnonzero(communication_kernels(recorded.device))
    device, launch = recorded.device.take(rows), launch_ns[rows]
    at = _calls_of(recorded, device, launch)
    calls = _looked_up(
        recorded, _known_or(device.ints("call"), -1, _of(recorded.calls, "call", at, -1))
    )
    names = device.strings("name")
    callers = [recorded.calls.strings("name")[row] if row >= 0 else None for row in at.tolist()]
    ops = [call.op or operator_of(word or "") or _op_of_kernel(names[row] or "", word is not None)
           for row, (call, word) in enumerate(zip(calls, callers, strict=True))]  # fmt: skip
    groups, guessed = _groups(calls, known, device.ints("stream"))
    start = device.ints("start_ns")
    from_call = _of(recorded.calls, "sequence", at, NULL)
    return _table(
        ops, calls, groups, guessed,
        enqueue_ns=np.where(launch == NULL, start, np.minimum(launch, start)),
        start_ns=start, end_ns=ends(device), blocked_ns=np.full(rows.size, NULL),
        thread=np.full(rows.size, NULL),
        sequence=_known_or(device.ints("sequence"), NULL, from_call),
    )  # fmt: skip


def communication_kernels(device: Table) -> Mask:
    """The communication kernels, by their names."""
    names = device.strings("name")
    hits = np.array([is_communication_kernel(value) for value in names.values] or [False], np.bool_)
    return hits[names.codes]


def _of(calls: Table, column: str, rows: Ints, missing: int) -> Ints:
    """Values of the given rows of `calls`; `missing` for negative rows."""
    if not len(calls):
        return np.full(rows.shape, missing)
    return np.where(rows >= 0, calls.ints(column)[rows], missing)


def _known_or(values: Ints, unknown: int, others: Ints) -> Ints:
    return np.where(values == unknown, others, values)


def _op_of_kernel(name: str, called: bool) -> str | None:
    """The operator of a kernel; unknown for `SendRecv` without a call: it may be an all-to-all."""
    return None if "SendRecv" in name and not called else operator_of(name)


def _looked_up(recorded: Recording, codes: Ints) -> list[Call]:
    return [recorded.arguments[code] if code >= 0 else _NOTHING for code in codes.tolist()]


def _calls_of(recorded: Recording, device: Table, launch: Ints) -> Ints:
    """The row of `calls` that launched each kernel; -1 if unknown."""
    calls = recorded.calls
    if not len(calls) or not len(device):
        return np.full(len(device), -1)
    parameters = np.flatnonzero(calls.strings("name").equals(PARAMETERS))
    by_id = _by_external(calls.ints("external")[parameters], device.ints("external"))
    found = np.where(by_id >= 0, parameters[by_id] if parameters.size else -1, -1)
    saying = np.flatnonzero(named(calls, *OF_DEVICE, PARAMETERS, "c10d::"))
    if not saying.size:
        return found
    return np.where(found >= 0, found, _enclosing(calls, saying, launch))


def _by_external(ids: Ints, wanted: Ints) -> Ints:
    """The position of each wanted id; -1 if it is missing."""
    if not ids.size:
        return np.full(wanted.shape, -1)
    order = np.argsort(ids, kind="stable")
    at = np.minimum(np.searchsorted(ids[order], wanted), ids.size - 1)
    hit = (ids[order][at] == wanted) & (wanted != NULL)
    return np.where(hit, order[at], -1)


def _enclosing(calls: Table, rows: Ints, moments: Ints) -> Ints:
    """The innermost call in progress at each moment; -1 if there is none."""
    start, end = calls.ints("start_ns")[rows], ends(calls)[rows]
    at = latest_before(start, moments)
    for _ in range(4):  # an annotation inside an operator inside an operator
        missed = (at >= 0) & (end[np.maximum(at, 0)] < moments)
        at = np.where(missed, at - 1, at)
    inside = (at >= 0) & (moments != NULL) & (end[np.maximum(at, 0)] >= moments)
    return np.where(inside, rows[np.maximum(at, 0)], -1)


def _groups(
    calls: list[Call], known: Known, streams: Ints
) -> tuple[list[ProcessGroup | None], bool]:
    """The group of each call; if it is unknown and there are several, one group per stream."""
    silent = np.array([call.group is None for call in calls], np.bool_)
    alone = _only_group(known)
    several = alone is None and distinct(streams[silent]).size > 1
    order = {stream: at for at, stream in enumerate(distinct(streams).tolist())}
    said = {id(call): process_group(call.group, known.world_size)
            for call in {id(call): call for call in calls}.values() if call.group}  # fmt: skip
    groups: list[ProcessGroup | None] = []
    for call, stream in zip(calls, streams.tolist(), strict=True):
        unnamed = ProcessGroup(f"other-stream{order[stream]}", "other", ()) if several else alone
        groups.append(said.get(id(call)) or unnamed or DEFAULT)
    return groups, several


def _only_group(known: Known) -> ProcessGroup | None:
    if len(known.groups) != 1:
        return None
    return process_group(known.groups[0], known.world_size)


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
    return _table(
        ops, calls, groups, False, thread=threads,
        enqueue_ns=np.minimum(_known_or(_of(called, "start_ns", caller, NULL), NULL, start), start),
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
    said = _looked_up(recorded, calls.ints("call"))
    ops = _ops(calls)
    groups, guessed = _groups(said, known, np.zeros(len(calls), np.int64))
    unknown = np.full(len(calls), NULL)
    return _table(
        ops, said, groups, guessed, enqueue_ns=calls.ints("start_ns"), start_ns=unknown,
        end_ns=unknown, blocked_ns=unknown, thread=unknown, sequence=calls.ints("sequence"),
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
        "state": Strings(np.zeros(len(ops), np.int32), ("done",)),
    })  # fmt: skip
    named_groups = tuple(dict.fromkeys(group for group in groups if group is not None))
    return Communication(table.take(keep), named_groups, guessed and bool(keep.any()))


def _peer(op: str | None, call: Call) -> int:
    if op not in ("Send", "Recv"):
        return NO_PEER
    return call.peer if call.peer >= 0 else UNKNOWN_PEER
