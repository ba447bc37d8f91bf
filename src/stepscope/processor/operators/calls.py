"""Matches the script's calls with NCCL's operators, in one process group of one process.

Torch calls NCCL before the call of an operator returns or, if the script groups calls
(`batch_isend_irecv`, coalescing), at the end of the group. So calls and operators of a process
group alternate in time and form batches: some calls, then their operators, then the next calls. A
batch of one call is joined with all its operators if such a call produces them. A batch of several
calls is joined if each has exactly one operator of the same type, peer and size. A batch that does
not match is not joined and does not affect others.

Both times come from one clock, on the calling thread. Not supported: non-blocking communicators,
for which NCCL launches from its own thread; their batches do not match.

Cost: two sorts.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from stepscope.processor.operators.launches import Operator
from stepscope.trace.names import NO_PEER
from stepscope.wire.records import UNKNOWN

BECOMES = {
    "AllGather": {"Broadcast"},
    "ReduceScatter": {"Reduce"},
    "AllToAll": {"Send", "Recv"},
    "Gather": {"Send", "Recv"},
    "Scatter": {"Send", "Recv"},
    "Barrier": {"AllReduce"},
}
"""The operators that torch (ProcessGroupNCCL.cpp) uses for calls that NCCL has no operator for, or
for lists of tensors of different sizes."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of an operator, as recorded by Python's hooks."""

    record: bytes
    group: str
    op: str
    peer: int
    size: int
    enqueue_ns: int


@dataclass
class Batch:
    """Calls, and the operators that NCCL received before the next calls."""

    calls: list[Call] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)


def batches(calls: Iterable[Call], operators: Iterable[Operator]) -> Iterator[Batch]:
    """Batches of one process group, in order of time."""
    moments: list[tuple[int, bool, Call | Operator]] = [
        *((one.enqueue_ns, False, one) for one in calls),
        *((one.enqueue_ns, True, one) for one in operators),
    ]
    batch = Batch()
    for _, _, one in sorted(moments, key=lambda moment: moment[:2]):
        if isinstance(one, Operator):
            batch.operators.append(one)
            continue
        if batch.operators:
            yield batch
            batch = Batch()
        batch.calls.append(one)
    if batch.calls or batch.operators:
        yield batch


def joined(batch: Batch, peers: Sequence[int]) -> dict[Call, list[Operator]]:
    """The operators of each call; empty if the batch does not match.

    Args:
        peers: the peer of each operator, as a rank of the job.
    """
    # NCCL skips empty operators, but for a barrier torch passes a tensor of its own
    calls = [call for call in batch.calls if call.size != 0 or call.op == "Barrier"]
    if len(calls) == 1:
        fits = _is_made_of(calls[0], batch.operators, peers)
        return {calls[0]: batch.operators} if fits else {}
    theirs = _by_key(((op.op, peer, op.size), op) for op, peer in _each(batch, peers))
    ours = _by_key(((call.op, call.peer, call.size), call) for call in calls)
    if {key: len(some) for key, some in theirs.items()} != {k: len(v) for k, v in ours.items()}:
        return {}
    return {call: [theirs[key].popleft()] for key, some in ours.items() for call in some}


def _each(batch: Batch, peers: Sequence[int]) -> Iterator[tuple[Operator, int]]:
    return zip(batch.operators, peers, strict=True)


def _by_key(pairs: Iterable[tuple[Hashable, T]]) -> dict[Hashable, deque[T]]:
    found: dict[Hashable, deque[T]] = defaultdict(deque)
    for key, one in pairs:
        found[key].append(one)
    return found


def _is_made_of(call: Call, operators: Sequence[Operator], peers: Sequence[int]) -> bool:
    if not operators:
        return False
    ops = {op.op for op in operators}
    if ops <= BECOMES.get(call.op, set()):
        return True
    if ops != {call.op} or (call.peer != NO_PEER and set(peers) != {call.peer}):
        return False
    sizes = [op.size for op in operators]
    return UNKNOWN in (*sizes, call.size) or sum(sizes) == call.size
