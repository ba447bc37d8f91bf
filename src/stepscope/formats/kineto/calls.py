"""Decodes the arguments of communication calls: operator, size, group, peer.

They are in three places: in an NCCL kernel, in the `record_param_comms` operator that launched it,
and in a `c10d::` operator or `gloo:` annotation if shapes were recorded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from stepscope.formats.kineto.plain import plain
from stepscope.formats.limits import MOST_RANKS
from stepscope.window import NULL

Number = int | float | str | None
Arguments = dict[str, Any]
"""The arguments of a call, by Kineto's names."""

PARAMETERS = "record_param_comms"
COMMUNICATES = ("c10d::", "gloo:", "nccl:", "rccl:", "mpi:", "ucc:", PARAMETERS)
"""Name prefixes of operators and annotations that are communication calls."""
_KERNEL = re.compile(r"nccl|rccl", re.I)

_OPERATORS = (
    ("reducescatter", "ReduceScatter"), ("allreduce", "AllReduce"), ("allgather", "AllGather"),
    ("alltoall", "AllToAll"), ("broadcast", "Broadcast"), ("reduce", "Reduce"),
    ("sendrecv", "Send"), ("gather", "Gather"), ("scatter", "Scatter"),
    ("barrier", "Barrier"), ("send", "Send"), ("recv", "Recv"),
)  # fmt: skip
"""Longer words first. NCCL's `SendRecv` kernels also run all-to-all: the call decides."""

_SIZES = {
    "double": 8, "float": 4, "half": 2, "bfloat16": 2, "long": 8, "longint": 8, "int": 4,
    "short": 2, "shortint": 2, "char": 1, "signedchar": 1, "byte": 1, "unsignedchar": 1, "bool": 1,
    "float8e4m3fn": 1, "float8e5m2": 1, "float8e4m3fnuz": 1, "float8e5m2fnuz": 1,
    "complexfloat": 8, "complexdouble": 16, "complexhalf": 4,
    "c10half": 2, "c10bfloat16": 2, "c10float8e4m3fn": 1, "c10float8e5m2": 1,
    "c10complexfloat": 8, "c10complexdouble": 16, "uint16": 2, "uint32": 4, "uint64": 8,
}  # fmt: skip
"""Bytes per element, by names of torch's and C++'s types, letters and digits only."""
_REGULAR = ("Group size", "Global rank start", "Global rank stride")
_GROUP = ("Process Group Name", "Process Group Description", "Process Group Ranks", *_REGULAR)
_PEER = {"Send": "Dst Rank", "Recv": "Src Rank"}
_RANK_RUN = re.compile(r"-?\d+")
MOST_MEMBERS = 1 << 22
"""Most members of all groups of a file: 150 MB. A rank of 100,000 is in a dozen groups."""


@dataclass(frozen=True)
class Group:
    """A process group as recorded in a call."""

    name: str
    words: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """The decoded arguments of a call."""

    op: str | None
    size_bytes: int
    group: Group | None
    peer: int
    """Global rank of the peer of a send or receive; NULL if unknown."""
    third: int
    """The third argument if shapes were recorded; NULL if it is not a number."""


def is_communication_kernel(name: str) -> bool:
    """Whether a kernel communicates; memory copies never do."""
    return _KERNEL.search(name[:64]) is not None and not name.startswith(("Memcpy", "Memset"))


@lru_cache(1 << 12)
def operator_of(name: str) -> str | None:
    """The contract's operator in the name of a collective, kernel or annotation."""
    letters = re.sub(r"[^a-z]", "", name.lower().rpartition(":")[2][:96])
    return next((op for word, op in _OPERATORS if word in letters), None)


class Calls:
    """Decodes calls. Members of a large group are parsed only once."""

    def __init__(self) -> None:
        self._groups: dict[tuple[Any, ...], Group | None] = {}
        self._members = 0

    @property
    def full(self) -> bool:
        """Whether there are more members than any job has: a file made to exhaust memory."""
        return self._members >= MOST_MEMBERS

    def decoded(self, text: bytes) -> Call:
        arguments = plain(text) or {}
        return call_of(arguments, self._group(arguments))

    def _group(self, arguments: Arguments) -> Group | None:
        key = tuple(map(arguments.get, _GROUP))
        if key not in self._groups:
            group = self._groups[key] = None if self.full else group_of(arguments)
            self._members += len(group.ranks) if group else 0
        return self._groups[key]


def call_of(arguments: Arguments, group: Group | None) -> Call:
    name = arguments.get("Collective name")
    op = operator_of(name) if name else None
    if name:
        elements = arguments.get("Out msg nelems" if op == "Scatter" else "In msg nelems")
        size = _size(elements, arguments.get("dtype"))
    else:
        size = _shaped_size(arguments.get("Input Dims"), arguments.get("Input type"))
    peer = whole(arguments.get(_PEER[op])) if op in _PEER else NULL
    return Call(op, size, group, peer, _third(arguments.get("Concrete Inputs")))


def _third(values: Any) -> int:
    """The third of a send's or receive's arguments: 1 in `["", "", "1", "0"]`."""
    third = str(values[2]) if isinstance(values, list) and len(values) > 2 else ""
    return int(third) if third.isdecimal() and len(third) < 8 else NULL


def whole(value: Any) -> int:
    """The whole number that a value of JSON is, or spells; NULL if it is none or inexact."""
    try:
        return int(value) if value is not None and abs(float(value)) < 2**53 else NULL
    except (TypeError, ValueError, OverflowError):
        return NULL


def _size(elements: Number, dtype: str | None) -> int:
    width, count = _SIZES.get(_letters(dtype or ""), 0), whole(elements)
    return count * width if width and 0 <= count < 2**48 else NULL


def _letters(dtype: str) -> str:
    return re.sub(r"[^a-z0-9]", "", dtype.lower())


def _shaped_size(shapes: Any, types: Any) -> int:
    """Bytes of the tensors: 33280 for `[[8320]]` and `["float"]`."""
    if not isinstance(shapes, list) or not isinstance(types, list) or len(types) != len(shapes):
        return NULL
    sizes = [_size(_elements(shape), str(type_))
             for shape, type_ in zip(shapes, types, strict=True) if shape]  # fmt: skip
    return sum(sizes) if sizes and NULL not in sizes else NULL


def _elements(shape: Any) -> int | None:
    count = 1
    for length in shape if isinstance(shape, list) else [None]:
        if not isinstance(length, int) or count > 2**48:
            return None
        count *= length
    return count


def group_of(arguments: Arguments) -> Group | None:
    name = arguments.get("Process Group Name")
    if name is None:
        return None
    return Group(str(name), arguments.get("Process Group Description") or "", _ranks(arguments))


def _ranks(arguments: Arguments) -> tuple[int, ...]:
    """The members; torch abbreviates long lists as `[0, 1, ..., 7]`, with first and stride."""
    listed = arguments.get("Process Group Ranks") or ""
    ranks = tuple(int(run) for run in _RANK_RUN.findall(listed) if len(run) < 10)
    if ranks and "..." not in listed:
        return ranks
    size, first, stride = (whole(arguments.get(name)) for name in _REGULAR)
    if 0 < size <= MOST_RANKS and first >= 0 and stride > 0:
        return tuple(range(first, first + size * stride, stride))
    return ()
