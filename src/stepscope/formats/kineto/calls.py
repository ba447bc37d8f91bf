"""What a communication call says of itself: operator, size, group, peer.

Three places say it: the arguments of an NCCL kernel, of the `record_param_comms` operator that
launched it, and of a `c10d::` operator or `gloo:` annotation where shapes were recorded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec

from stepscope.formats.kineto.events import NOTHING, UNREADABLE, Arguments, Number
from stepscope.window import NULL

PARAMETERS = "record_param_comms"
_COMMUNICATES = ("c10d::", "gloo:", "nccl:", "rccl:", "mpi:", "ucc:", PARAMETERS)
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
_CALL = attrgetter("collective", "elements_in", "elements_out", "dtype", "source", "target")
_GROUP = attrgetter(
    "group_name", "group_words", "group_ranks", "group_size", "group_first", "group_stride"
)
_RANK_RUN = re.compile(r"-?\d+")
_MOST_RANKS = 1 << 20
MOST_CALLS = 1 << 17
"""Distinct ones of a file: a job has some hundred, 200 MB of memory hold so many."""
MOST_TEXT = 64 << 20
"""Characters in which distinct calls may say what they say; a job needs some hundred thousand."""
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
    values: str
    """Arguments without tensors, where shapes were recorded."""


@lru_cache(1 << 12)
def communicates(name: str) -> bool:
    """Whether an operator or annotation of the CPU is a communication call."""
    return name.startswith(_COMMUNICATES)


def is_communication_kernel(name: str) -> bool:
    """Whether a kernel communicates; copies never do, whatever they copy."""
    return _KERNEL.search(name[:64]) is not None and not name.startswith(("Memcpy", "Memset"))


@lru_cache(1 << 12)
def operator_of(name: str) -> str | None:
    """The contract's operator that a collective's, kernel's or annotation's name speaks of."""
    letters = re.sub(r"[^a-z]", "", name.lower().rpartition(":")[2][:96])
    return next((op for word, op in _OPERATORS if word in letters), None)


class Calls:
    """Numbers what calls say. Few differ, and members of a large group are listed only once."""

    def __init__(self) -> None:
        self._codes: dict[tuple[Any, ...], int] = {}
        self._groups: dict[tuple[Any, ...], Group | None] = {}
        self._text = self._members = 0
        self.found: list[Call] = []

    @property
    def full(self) -> bool:
        """Whether this can be no job's, but a file made to fill the memory."""
        too_long = self._text >= MOST_TEXT or self._members >= MOST_MEMBERS
        return too_long or len(self.found) >= MOST_CALLS

    def code(self, args: Arguments) -> int:
        """The number of what the arguments say, -1 where they say nothing."""
        if args.collective is None and args.types is NOTHING and args.values is NOTHING:
            return -1
        shapes = bytes(args.shapes), bytes(args.types), bytes(args.values)
        said = (*_CALL(args), *_GROUP(args), *shapes)
        code = self._codes.get(said)
        if code is None:
            code = self._new(said, args)
        return code

    def _new(self, said: tuple[Any, ...], args: Arguments) -> int:
        if self.full:
            return -1
        self._text += sum(len(one) for one in said if isinstance(one, str | bytes))
        code = self._codes[said] = len(self.found)
        self.found.append(call_of(args, self._group(args)))
        return code

    def _group(self, args: Arguments) -> Group | None:
        said = _GROUP(args)
        if said not in self._groups:
            group = self._groups[said] = group_of(args)
            self._members += len(group.ranks) if group else 0
        return self._groups[said]


def call_of(args: Arguments, group: Group | None) -> Call:
    op = operator_of(args.collective) if args.collective else None
    elements = args.elements_out if op == "Scatter" else args.elements_in
    if args.collective:
        size = _size(elements, args.dtype)
    else:
        size = _shaped_size(_plain(args.shapes), _plain(args.types))
    peer = whole(args.target if op == "Send" else args.source if op == "Recv" else None)
    values = bytes(args.values)[:256].decode("utf-8", "replace")
    return Call(op, size, group, peer, values)


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


def _plain(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except UNREADABLE:
        return None


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


def group_of(args: Arguments) -> Group | None:
    if args.group_name is None:
        return None
    return Group(str(args.group_name), args.group_words or "", _ranks(args))


def _ranks(args: Arguments) -> tuple[int, ...]:
    """The members; torch shortens long lists to `[0, 1, ..., 7]` and gives first and stride."""
    listed = args.group_ranks or ""
    size, first, stride = map(whole, (args.group_size, args.group_first, args.group_stride))
    ranks = tuple(int(run) for run in _RANK_RUN.findall(listed) if len(run) < 10)
    if ranks and "..." not in listed:
        return ranks
    if 0 < size <= _MOST_RANKS and first >= 0 and stride > 0:
        return tuple(range(first, first + size * stride, stride))
    return ()
