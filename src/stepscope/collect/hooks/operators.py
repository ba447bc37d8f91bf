"""The operators of torch's dispatcher, and how to read their arguments."""

from __future__ import annotations

from typing import Any

from stepscope.trace.names import NO_PEER, UNKNOWN_PEER
from stepscope.wire.records import UNKNOWN

OPERATORS = {
    "allreduce_": "AllReduce",
    "allreduce_coalesced_": "AllReduce",
    "allgather_": "AllGather",
    "_allgather_base_": "AllGather",
    "allgather_coalesced_": "AllGather",
    "allgather_into_tensor_coalesced_": "AllGather",
    "reduce_scatter_": "ReduceScatter",
    "_reduce_scatter_base_": "ReduceScatter",
    "reduce_scatter_tensor_coalesced_": "ReduceScatter",
    "alltoall_": "AllToAll",
    "alltoall_base_": "AllToAll",
    "broadcast_": "Broadcast",
    "reduce_": "Reduce",
    "gather_": "Gather",
    "scatter_": "Scatter",
    "barrier": "Barrier",
    "send": "Send",
    "recv_": "Recv",
    "recv_any_source_": "Recv",
}
"""torch's dispatcher operators, with their names in the job folder."""

_INPUTS = ("input_tensors", "input_tensor", "input_list", "input", "inputs", "tensors", "tensor")
_OUTPUTS = "output_tensors"
_PEERS = ("dst", "src")


class Call:
    """Positions of the arguments of one dispatcher operator, read from its schema once."""

    def __init__(self, op: str, schema: Any) -> None:
        names = [argument.name for argument in schema.arguments]
        self.op = op
        self.arguments = len(names)
        self.is_p2p = op in ("Send", "Recv")
        self.moves_data = op != "Barrier"
        self.group_at = names.index("process_group")
        # what this rank contributes; for a scatter its share, because only the root has an input
        tensors = _OUTPUTS if op == "Scatter" else next(name for name in _INPUTS if name in names)
        self.tensors_at = names.index(tensors)
        self.async_at = names.index("async_op") if "async_op" in names else None
        self.peer_at = next((names.index(name) for name in _PEERS if name in names), None)

    def is_async(self, args: tuple[Any, ...]) -> bool:
        """False only if the caller waits at once; torch does not pass on default arguments."""
        at = self.async_at
        return at is None or at >= len(args) or bool(args[at])

    def peer(self, args: tuple[Any, ...]) -> int:
        """Rank of the peer within the group."""
        if not self.is_p2p:
            return NO_PEER
        if self.peer_at is None:
            return UNKNOWN_PEER
        return int(args[self.peer_at])


def address(tensors: Any) -> int:
    """Address of the values of the (first) tensor; 0 if there is none, or it is sparse."""
    tensor = first_tensor(tensors)
    return 0 if tensor is None or is_sparse(tensor) else int(tensor.data_ptr())


_SEQUENCES = (list, tuple)


def first_tensor(tensors: Any) -> Any:
    while isinstance(tensors, _SEQUENCES):
        if not tensors:
            return None
        tensors = tensors[0]
    return tensors


def blocks_host(tensors: Any) -> bool:
    """Whether waiting means waiting for the end, as with gloo, and not just for a launch."""
    tensor = first_tensor(tensors)
    return tensor is None or bool(tensor.is_cpu)


def size_bytes(tensors: Any) -> int:
    """What one rank passes; UNKNOWN of sparse tensors: members of one operator pass different
    numbers of values, and none of them says how much moves."""
    if not isinstance(tensors, _SEQUENCES):
        if is_sparse(tensors):
            return UNKNOWN
        return int(tensors.numel() * tensors.element_size())
    if len(tensors) == 1:  # nearly always
        return size_bytes(tensors[0])
    sizes = [size_bytes(tensor) for tensor in tensors]
    return UNKNOWN if UNKNOWN in sizes else sum(sizes)


def is_sparse(tensor: Any) -> bool:
    """Whether it has indices beside its values, in the one such layout that backends take."""
    return bool(tensor.is_sparse)
