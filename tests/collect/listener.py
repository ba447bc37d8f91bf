"""The other end of the socket, in the hands of a test."""

from __future__ import annotations

import select
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.wire.frames import (
    MAX_PACKET_BYTES,
    Header,
    Hello,
    Names,
    PacketKind,
    decode_hello,
    decode_names,
    records,
    unpack,
)
from stepscope.wire.records import COMM_DONE, RecordKind, unpack_peer

PATIENCE_SECONDS = 30.0
"""Nothing is measured by it: a test that waits for longer hangs."""


@dataclass(frozen=True)
class Record:
    """One record with its first name looked up."""

    kind: RecordKind
    flags: int
    ordinal: int
    name: str
    fields: tuple[int, ...]


@dataclass(frozen=True)
class Operator:
    """A COMM record in words."""

    group: str
    op: str
    peer: int
    seq: int
    size: int
    enqueue_ns: int
    end_ns: int
    done: bool


@dataclass
class Heard:
    """What one connection said, in order."""

    headers: list[Header] = field(default_factory=list)
    hellos: list[Hello] = field(default_factory=list)
    told: list[Names] = field(default_factory=list)
    rows: list[tuple[int, ...]] = field(default_factory=list)
    controls: list[memoryview] = field(default_factory=list)

    def take(self, data: bytes) -> None:
        header, payload = unpack(data)
        self.headers.append(header)
        if header.kind == PacketKind.HELLO:
            self.hellos.append(decode_hello(payload))
        elif header.kind == PacketKind.NAMES:
            self.told.append(decode_names(payload))
        elif header.kind == PacketKind.RECORDS:
            self.rows += records(payload)
        elif header.kind == PacketKind.CONTROL:
            self.controls.append(payload)

    @property
    def names(self) -> dict[int, str]:
        return {id: name for told in self.told for id, name in told.names.items()}

    @property
    def parallelism(self) -> dict[str, int]:
        return {kind: size for told in self.told for kind, size in told.parallelism.items()}

    def groups(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Kind and ranks by id."""
        return {g.id: (g.kind, g.ranks) for told in self.told for g in told.groups}

    def records(self, kind: RecordKind | None = None) -> list[Record]:
        names = self.names
        return [
            Record(RecordKind(k), flags, ordinal, names.get(fields[0], "?"), tuple(fields))
            for k, flags, ordinal, *fields in self.rows
            if kind is None or k == kind
        ]

    def operators(self) -> list[Operator]:
        """As told, in the order of their calls."""
        names, out = self.names, []
        for record in self.records(RecordKind.COMM):
            _, op_peer, seq, size, enqueue_ns, end_ns, _ = record.fields
            op, peer = unpack_peer(op_peer)
            done = record.flags == COMM_DONE
            out.append(Operator(record.name, names[op], peer, seq, size, enqueue_ns, end_ns, done))
        return sorted(out, key=lambda operator: operator.enqueue_ns)

    def dropped(self) -> Counter[str]:
        """Rows that the producer says it dropped, by table."""
        out: Counter[str] = Counter()
        for record in self.records(RecordKind.COUNT):
            if record.name.startswith("dropped."):
                out[record.name.removeprefix("dropped.")] += record.fields[1]
        return out


class Peer:
    """One accepted connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.heard = Heard()

    def read_until(self, enough: Callable[[Heard], bool]) -> Heard:
        """Reads packets until there is enough."""
        while not enough(self.heard):
            data = self._receive()
            assert data, f"the producer hung up after {len(self.heard.headers)} packets"
            self.heard.take(data)
        return self.heard

    def read_to_the_end(self) -> Heard:
        """Reads until the producer hangs up."""
        while data := self._receive():
            self.heard.take(data)
        return self.heard

    def _receive(self) -> bytes:
        self.connection.settimeout(PATIENCE_SECONDS)
        return self.connection.recv(MAX_PACKET_BYTES)

    def close(self) -> None:
        self.connection.close()


class Listener:
    """A socket like the processor's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(str(path))
        self._socket.listen(16)

    def accept(self) -> Peer:
        self._socket.settimeout(PATIENCE_SECONDS)
        return Peer(self._socket.accept()[0])

    def has_visitor(self) -> bool:
        return bool(select.select([self._socket], [], [], 0)[0])

    def close(self) -> None:
        self._socket.close()


def rows(count: int) -> Callable[[Heard], bool]:
    """Enough once so many records came."""
    return lambda heard: len(heard.rows) >= count
