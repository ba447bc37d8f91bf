"""Decodes the arguments of communication calls: operator, size, group, peer.

They are in four places: in an NCCL kernel, in the `record_param_comms` operator that launched it,
in a `c10d::` operator or `gloo:` annotation if shapes were recorded, and in the names of operators
and annotations (`nccl:send 0->1`). Each may have what another lacks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from stepscope.formats.kineto.plain import plain
from stepscope.formats.limits import MOST_RANKS
from stepscope.window import NULL

Number = int | float | str | None
Arguments = dict[str, Any]
"""The arguments of a call, by Kineto's names."""

PARAMETERS = "record_param_comms"
COMMUNICATES = ("c10d::", "gloo:", "nccl:", "rccl:", "xccl:", "mpi:", "ucc:", PARAMETERS)
"""Name prefixes of operators and annotations that are communication calls."""

_OPERATORS = (
    ("reducescatter", "ReduceScatter"), ("allreduce", "AllReduce"), ("allgather", "AllGather"),
    ("crossdevicereduce", "AllReduce"),
    ("alltoall", "AllToAll"), ("broadcast", "Broadcast"), ("reduce", "Reduce"),
    ("sendrecv", "Send"), ("gather", "Gather"), ("scatter", "Scatter"),
    ("dispatch", "AllToAll"), ("combine", "AllToAll"),
    ("barrier", "Barrier"), ("send", "Send"), ("recv", "Recv"),
)  # fmt: skip
"""Longer words first. NCCL's `SendRecv` kernels also run all-to-all: the call decides. Tokens are
dispatched to experts and combined from them."""

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
P2P = ("Send", "Recv")
_PEER = {"Send": "Dst Rank", "Recv": "Src Rank"}
_RANK_RUN = re.compile(r"-?\d+")
_PAIR = re.compile(r"(\d{1,7})(?:->|<-)(\d{1,7})$")
"""Torch's `nccl:send 0->1` and `nccl:recv 1<-0`."""
MOST_MEMBERS = 1 << 22
"""Most members of all groups of a file: 150 MB. A rank of 100,000 is in a dozen groups."""


@dataclass(frozen=True)
class Group:
    """A process group as recorded in a call, or as far as it was recorded there."""

    name: str
    words: str
    ranks: tuple[int, ...]

    def completed(self, other: Group) -> Group:
        """This group, with what only the other record of it has."""
        return Group(self.name or other.name, self.words or other.words, self.ranks or other.ranks)


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
    members: int = NULL
    """The size of the group; NULL if unknown."""
    pair: tuple[int, int] | None = None
    """This rank and its peer by their places in the group."""

    def completed(self, other: Call) -> Call:
        """This call, with what only the other record of it has."""
        if self.op and other.op and self.op != other.op:
            return self
        group = self.group.completed(other.group) if self.group and other.group else None
        return Call(
            self.op or other.op, _known(self.size_bytes, other.size_bytes),
            group or self.group or other.group, _known(self.peer, other.peer),
            _known(self.third, other.third), _known(self.members, other.members),
            self.pair or other.pair,
        )  # fmt: skip


NOTHING = Call(None, NULL, None, NULL, NULL)
"""A call of which nothing is known."""


def _known(value: int, other: int) -> int:
    return other if value == NULL else value


@lru_cache(1 << 12)
def operator_of(name: str) -> str | None:
    """The contract's operator in the name of a collective, kernel or annotation."""
    name = name.replace("(anonymous namespace)::", "")
    name = re.split(r"[<(]", name, maxsplit=1)[0]  # without the types of a kernel
    letters = re.sub(r"[^a-z]", "", name.lower().rpartition(":")[2][:96])
    return next((op for word, op in _OPERATORS if word in letters), None)


@lru_cache(1 << 12)
def call_by_name(name: str) -> Call:
    """What the name of a call says: the operator, and of a send or receive its two ranks."""
    op, pair = operator_of(name), _PAIR.search(name[-24:])
    known = pair is not None and op in _PEER
    return replace(NOTHING, op=op, pair=(int(pair[1]), int(pair[2])) if pair and known else None)


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
    third, members = _third(arguments.get("Concrete Inputs")), whole(arguments.get("Group size"))
    return Call(op, size, group, peer, third, members if members > 0 else NULL)


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
    """The group by its name, its members, or both: torch 2.3 and earlier record no name."""
    name, ranks = arguments.get("Process Group Name"), _ranks(arguments)
    if name is None and not ranks:
        return None
    words = arguments.get("Process Group Description") or ""
    return Group("" if name is None else str(name), words, ranks)


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
