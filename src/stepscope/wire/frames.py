"""Packets between producers and the processor: one SEQPACKET message is one packet.

    0       4         6        8       12        16        24          32
    | magic | version | kind   | count | dropped | packet  | pid       |  payload …
    | u32   | u16     | u16    | u32   | u32     | u64     | u64       |

- magic: `b"SScp"`, so that another program on the socket is detected immediately.
- version: of this layout; a processor refuses other versions and logs that once.
- kind: HELLO and NAMES carry JSON, RECORDS carries `count` records of 64 bytes, CONTROL carries
  JSON requests and replies (`control`) in both directions.
- count: records in the payload; must agree with its length.
- dropped: records lost in this producer since its last packet (a full ring).
- packet: number of this packet on this connection, from 0; a gap would be a lost packet.
- pid: of the producer.

A packet has at most 64 KiB, because hosts commonly limit socket send buffers to about 208 KiB.
Names that do not fit one packet are sent in several.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from typing import Any

from stepscope.errors import WireError
from stepscope.wire.records import RECORD, RECORD_BYTES

MAGIC = int.from_bytes(b"SScp", "little")
VERSION = 1
HEADER = struct.Struct("<IHHIIQQ")
MAX_PACKET_BYTES = 65536
MAX_PAYLOAD_BYTES = MAX_PACKET_BYTES - HEADER.size
MAX_RECORDS = MAX_PAYLOAD_BYTES // RECORD_BYTES
MAX_TEXT = 4096
"""Most characters in one string: a job, a store, a name."""
MAX_MEMBERS = 1 << 20
"""Most ranks of all groups in one packet, or of one connection: few numbers could encode more than
fit in memory. Ten thousand ranks in a hundred groups each fit."""
_MAX_NUMBER = (1 << 31) - 1
MAX_TIME_NS = 1 << 61
"""Largest time in a record: the sum of two and of a clock's offset still fits 64 bits."""
_MAX_WALL_NS = 1 << 62
assert HEADER.size == 32


class PacketKind(IntEnum):
    HELLO = 1
    NAMES = 2
    RECORDS = 3
    CONTROL = 4


_KINDS = {int(kind): kind for kind in PacketKind}
_RECORDS = PacketKind.RECORDS


@dataclass(frozen=True)
class Header:
    kind: PacketKind
    count: int
    dropped: int
    packet: int
    pid: int


@dataclass(frozen=True)
class AtRisk:
    """Records sent shortly before a connection broke: the peer may not have stored them."""

    start_ns: int
    end_ns: int
    rows: Mapping[str, int]


PYTHON = "python"
"""The `source` of `collect`. Native producers (`cupti`, `nccl`) may run in the same process."""


@dataclass(frozen=True)
class Hello:
    """Identifies a producer. `wall_ns - mono_ns` converts its times to wall-clock time."""

    job: str
    store: str
    host: str
    rank: int
    world_size: int
    local_rank: int
    pid: int
    thread_id: int
    wall_ns: int
    mono_ns: int
    attempt: int = 0
    at_risk: AtRisk | None = None
    source: str = PYTHON


@dataclass(frozen=True)
class GroupInfo:
    """A process group as torch.distributed knows it."""

    id: str
    kind: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Names:
    """Strings and groups that later records refer to, by id."""

    names: Mapping[int, str] = field(default_factory=dict)
    groups: tuple[GroupInfo, ...] = ()
    parallelism: Mapping[str, int] = field(default_factory=dict)


def pack(kind: PacketKind, payload: bytes | memoryview, pid: int, packet: int,
         count: int = 0, dropped: int = 0) -> bytes:  # fmt: skip
    """One packet, ready to send."""
    header = HEADER.pack(MAGIC, VERSION, kind, count, min(dropped, 0xFFFFFFFF), packet, pid)
    return header + payload


def unpack(data: bytes | memoryview) -> tuple[Header, memoryview]:
    """Splits a packet into header and payload, and validates both.

    Raises:
        WireError: not a packet of this version, or its sizes do not agree.
    """
    view = memoryview(data)
    if len(view) < HEADER.size:
        raise WireError(
            f"packet of {len(view)} bytes is shorter than its {HEADER.size} byte header"
        )
    magic, version, kind, count, dropped, packet, pid = HEADER.unpack_from(view)
    if magic != MAGIC:
        raise WireError(f"magic is {magic:#010x}, want {MAGIC:#010x}: not a stepscope producer")
    if version != VERSION:
        raise WireError(f"packet version {version}, this processor expects {VERSION}")
    known = _KINDS.get(kind)
    if known is None:
        raise WireError(f"unknown packet kind {kind}")
    payload = view[HEADER.size :]
    if known is _RECORDS and len(payload) != count * RECORD_BYTES:
        raise WireError(f"{count} records announced, {len(payload)} payload bytes found")
    return Header(known, count, dropped, packet, pid), payload


def records(payload: memoryview) -> Iterator[tuple[int, ...]]:
    """The records of a RECORDS payload as tuples: slow but simple; numpy does it in bulk."""
    return RECORD.iter_unpack(payload)


def encode_hello(hello: Hello) -> bytes:
    body = dict(vars(hello))
    if hello.at_risk is not None:
        body["at_risk"] = vars(hello.at_risk)
    return json.dumps(body).encode()


def encode_names(names: Names) -> list[bytes]:
    """Encodes names into one payload, or several if one does not fit a packet.

    A group whose ranks are so irregular that it alone does not fit a packet is left out.
    """
    groups = [
        {"id": group.id, "kind": group.kind, "ranks": _runs_of(group.ranks)}
        for group in names.groups
    ]
    body = {"names": names.names, "groups": groups, "parallelism": dict(names.parallelism)}
    payload = json.dumps(body, separators=(",", ":")).encode()
    if len(payload) <= MAX_PAYLOAD_BYTES:
        return [payload]
    halves = _halves(names)
    return [payload for half in halves for payload in encode_names(half)]


def decode_hello(payload: memoryview) -> Hello:
    """Raises WireError when a field is missing, of the wrong kind, or out of range."""
    body = _json_object(payload)
    try:
        risk = body.get("at_risk")
        return Hello(
            job=_text(body["job"]),
            store=_text(body["store"]),
            host=_text(body["host"]),
            rank=_number(body["rank"]),
            world_size=_number(body["world_size"], MAX_MEMBERS),
            local_rank=_number(body["local_rank"]),
            pid=_number(body["pid"]),
            thread_id=_number(body["thread_id"]),
            wall_ns=_number(body["wall_ns"], _MAX_WALL_NS),
            mono_ns=_number(body["mono_ns"], MAX_TIME_NS),
            attempt=_number(body.get("attempt", 0)),
            at_risk=None if risk is None else _at_risk(risk),
            source=_text(body.get("source", PYTHON)),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise WireError(f"hello packet: {error!r}") from error


def decode_names(payload: memoryview) -> Names:
    """Raises WireError when a field is missing, of the wrong kind, or out of range."""
    body = _json_object(payload)
    try:
        return Names(
            {_number(int(id)): _text(name) for id, name in body.get("names", {}).items()},
            _groups_of(body.get("groups", ())),
            {_text(key): _number(size) for key, size in body.get("parallelism", {}).items()},
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise WireError(f"names packet: {error!r}") from error


def _at_risk(body: Mapping[str, Any]) -> AtRisk:
    rows = {_text(table): _number(rows) for table, rows in body["rows"].items()}
    start_ns, end_ns = (_number(body[key], MAX_TIME_NS) for key in ("start_ns", "end_ns"))
    return AtRisk(start_ns, end_ns, rows)


def _number(value: Any, most: int = _MAX_NUMBER) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r:.40} is not an integer")
    if not 0 <= value <= most:
        raise ValueError(f"{value!r:.40} is not between 0 and {most}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not a string")
    if len(value) > MAX_TEXT:
        raise ValueError(f"a string of {len(value)} characters, at most {MAX_TEXT} are allowed")
    return value


def _halves(names: Names) -> tuple[Names, ...]:
    """Splits names into two parts; drops a single name or group that is too large."""
    texts, groups = names.names, names.groups
    if len(texts) + len(groups) < 2:
        return (Names(parallelism=names.parallelism),) if texts or groups else ()
    return (
        Names(dict(islice(texts.items(), len(texts) // 2)), groups[: (len(groups) + 1) // 2],
              names.parallelism),
        Names(dict(islice(texts.items(), len(texts) // 2, None)), groups[(len(groups) + 1) // 2 :]),
    )  # fmt: skip


def _runs_of(ranks: Iterable[int]) -> list[list[int]]:
    """Ranks as runs of `[first, count, stride]`: ten thousand ranks in usual layouts easily fit a
    packet."""
    runs: list[list[int]] = []
    for rank in ranks:
        if not runs:
            runs.append([rank, 1, 1])
            continue
        first, count, stride = runs[-1]
        if count == 1:
            runs[-1] = [first, 2, rank - first]
        elif rank == first + count * stride:
            runs[-1][1] += 1
        else:
            runs.append([rank, 1, 1])
    return runs


def _groups_of(groups: Any) -> tuple[GroupInfo, ...]:
    out: list[GroupInfo] = []
    room = MAX_MEMBERS
    for group in groups:
        ranks = _ranks_of(group["ranks"], room)
        room -= len(ranks)
        out.append(GroupInfo(_text(group["id"]), _text(group["kind"]), ranks))
    return tuple(out)


def _ranks_of(runs: Any, room: int) -> tuple[int, ...]:
    """The ranks in these runs, whose number is checked before they are made."""
    ranks: list[int] = []
    for first, count, stride in runs:
        if type(stride) is not int or abs(stride) > _MAX_NUMBER:
            raise TypeError(f"{stride!r:.40} is not a stride")
        start, length = _number(first), _number(count, MAX_MEMBERS)
        if len(ranks) + length > room:
            raise ValueError(f"groups of more than {MAX_MEMBERS} ranks together")
        ranks += (_number(start + at * stride) for at in range(length))
    return tuple(ranks)


def _json_object(payload: memoryview) -> dict[str, Any]:
    try:
        body = json.loads(bytes(payload))
    except (ValueError, RecursionError) as error:
        raise WireError(f"payload is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise WireError(f"payload is a JSON {type(body).__name__}, want an object")
    return body
