"""What a communication call says of itself: operator, size, group, peer.

Three places say it: the arguments of an NCCL kernel, of the `record_param_comms` operator that
launched it, and of a `c10d::` operator or `gloo:` annotation where shapes were recorded.
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
Said = dict[str, Any]
"""The arguments of a call, by Kineto's names."""

PARAMETERS = "record_param_comms"
COMMUNICATES = ("c10d::", "gloo:", "nccl:", "rccl:", "mpi:", "ucc:", PARAMETERS)
"""How operators and annotations of the CPU begin that are communication calls."""
_KERNEL = re.compile(r"nccl|rccl", re.I)

_OPERATORS = (
    ("reducescatter", "ReduceScatter"), ("allreduce", "AllReduce"), ("allgather", "AllGather"),
    ("alltoall", "AllToAll"), ("broadcast", "Broadcast"), ("reduce", "Reduce"),
    ("sendrecv", "Send"), ("gather", "Gather"), ("scatter", "Scatter"),
    ("barrier", "Barrier"), ("send", "Send"), ("recv", "Recv"),
)  # fmt: skip
"""Longer words first. NCCL's `SendRecv` kernels are also its all-to-all: only the call tells."""

_SIZES = {
    "double": 8, "float": 4, "half": 2, "bfloat16": 2, "long": 8, "longint": 8, "int": 4,
    "short": 2, "shortint": 2, "char": 1, "signedchar": 1, "byte": 1, "unsignedchar": 1, "bool": 1,
    "float8e4m3fn": 1, "float8e5m2": 1, "float8e4m3fnuz": 1, "float8e5m2fnuz": 1,
    "complexfloat": 8, "complexdouble": 16, "complexhalf": 4,
    "c10half": 2, "c10bfloat16": 2, "c10float8e4m3fn": 1, "c10float8e5m2": 1,
    "c10complexfloat": 8, "c10complexdouble": 16, "uint16": 2, "uint32": 4, "uint64": 8,
}  # fmt: skip
"""Bytes per element, by torch's scalar types and C++'s names of them, letters and digits only."""
_REGULAR = ("Group size", "Global rank start", "Global rank stride")
_GROUP = ("Process Group Name", "Process Group Description", "Process Group Ranks", *_REGULAR)
_PEER = {"Send": "Dst Rank", "Recv": "Src Rank"}
_RANK_RUN = re.compile(r"-?\d+")
MOST_MEMBERS = 1 << 22
"""Of all distinct groups of a file: 150 MB. A rank of 100,000 is in a dozen groups at most."""


@dataclass(frozen=True)
class Group:
    """A process group as a call names it."""

    name: str
    words: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """What one or many calls say."""

    op: str | None
    size_bytes: int
    group: Group | None
    peer: int
    """Global rank at the other end of a send or receive, NULL where it is not said."""
    third: int
    """The third argument where shapes were recorded, NULL where it is no number."""


def is_communication_kernel(name: str) -> bool:
    """Whether a kernel communicates; copies never do, whatever they copy."""
    return _KERNEL.search(name[:64]) is not None and not name.startswith(("Memcpy", "Memset"))


@lru_cache(1 << 12)
def operator_of(name: str) -> str | None:
    """The contract's operator that a collective's, kernel's or annotation's name speaks of."""
    letters = re.sub(r"[^a-z]", "", name.lower().rpartition(":")[2][:96])
    return next((op for word, op in _OPERATORS if word in letters), None)


class Calls:
    """Decodes what calls say. Members of a large group are listed only once."""

    def __init__(self) -> None:
        self._groups: dict[tuple[Any, ...], Group | None] = {}
        self._members = 0

    @property
    def full(self) -> bool:
        """Whether these can be no job's groups, but a file made to fill the memory."""
        return self._members >= MOST_MEMBERS

    def decoded(self, text: bytes) -> Call:
        said = plain(text) or {}
        return call_of(said, self._group(said))

    def _group(self, said: Said) -> Group | None:
        key = tuple(map(said.get, _GROUP))
        if key not in self._groups:
            group = self._groups[key] = None if self.full else group_of(said)
            self._members += len(group.ranks) if group else 0
        return self._groups[key]


def call_of(said: Said, group: Group | None) -> Call:
    name = said.get("Collective name")
    op = operator_of(name) if name else None
    if name:
        elements = said.get("Out msg nelems" if op == "Scatter" else "In msg nelems")
        size = _size(elements, said.get("dtype"))
    else:
        size = _shaped_size(said.get("Input Dims"), said.get("Input type"))
    peer = whole(said.get(_PEER[op])) if op in _PEER else NULL
    return Call(op, size, group, peer, _third(said.get("Concrete Inputs")))


def _third(values: Any) -> int:
    """Of `["", "", "1", "0"]`, the arguments of a send or receive, the 1."""
    third = str(values[2]) if isinstance(values, list) and len(values) > 2 else ""
    return int(third) if third.isdecimal() and len(third) < 8 else NULL


def whole(value: Number) -> int:
    try:
        return int(value) if value is not None and abs(float(value)) < 2**53 else NULL
    except (ValueError, OverflowError):
        return NULL


def _size(elements: Number, dtype: str | None) -> int:
    width, count = _SIZES.get(_letters(dtype or ""), 0), whole(elements)
    return count * width if width and 0 <= count < 2**48 else NULL


def _letters(dtype: str) -> str:
    return re.sub(r"[^a-z0-9]", "", dtype.lower())


def _shaped_size(shapes: Any, types: Any) -> int:
    """Bytes of the tensors given; of `[[8320]]` and `["float"]`, 33280."""
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


def group_of(said: Said) -> Group | None:
    name = said.get("Process Group Name")
    if name is None:
        return None
    return Group(str(name), said.get("Process Group Description") or "", _ranks(said))


def _ranks(said: Said) -> tuple[int, ...]:
    """The members; torch shortens long lists to `[0, 1, ..., 7]` and gives first and stride."""
    listed = said.get("Process Group Ranks") or ""
    ranks = tuple(int(run) for run in _RANK_RUN.findall(listed) if len(run) < 10)
    if ranks and "..." not in listed:
        return ranks
    size, first, stride = (whole(said.get(name)) for name in _REGULAR)
    if 0 < size <= MOST_RANKS and first >= 0 and stride > 0:
        return tuple(range(first, first + size * stride, stride))
    return ()
