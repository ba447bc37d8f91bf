"""Packets as a training process would send them, without one."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepscope.processor.records.normalise import Rows
from stepscope.processor.state.host_state import HostState
from stepscope.window import NULL
from stepscope.wire.frames import (
    PYTHON,
    AtRisk,
    GroupInfo,
    Hello,
    Names,
    PacketKind,
    encode_hello,
    encode_names,
    pack,
)
from stepscope.wire.records import (
    COMM_DONE,
    COMM_OPEN,
    RECORD,
    UNKNOWN,
    EventKind,
    RecordKind,
    pack_peer,
)

OFFSET_NS = 1_766_000_000_000_000_000
"""Wall clock minus monotonic clock of every producer here."""
MS = 1_000_000


def plain(rows: Rows) -> dict[str, list[Any]]:
    """Values of rows in lists, `None` for null."""
    return {name: [None if value == NULL else value for value in _listed(values)]
            for name, values in rows.items()}  # fmt: skip


def _listed(values: Any) -> list[Any]:
    listed: list[Any] = values.tolist() if isinstance(values, np.ndarray) else list(values)
    return listed


@dataclass
class Producer:
    """One rank. Each method gives one packet."""

    rank: int = 0
    job: str = "job-1"
    store: str = "/store"
    host: str = "host-0"
    world_size: int = 2
    pid: int = field(default_factory=os.getpid)
    names: dict[str, int] = field(default_factory=dict)
    ordinal: int = 0
    now_ns: int = 0
    source: str = PYTHON

    def hello(self, at_risk: AtRisk | None = None, wall_ns: int = OFFSET_NS) -> bytes:
        """`wall_ns` is what the wall clock says when the monotonic one says 0."""
        hello = Hello(
            self.job, self.store, self.host, self.rank, self.world_size, self.rank,
            self.pid, self.pid, wall_ns, 0, 0, at_risk, self.source,
        )  # fmt: skip
        return pack(PacketKind.HELLO, encode_hello(hello), self.pid, 0)

    def tell(self, *names: str) -> bytes:
        for name in names:
            self.names.setdefault(name, len(self.names))
        return self._told(Names({self.names[name]: name for name in names}))

    def groups(self, *groups: GroupInfo, **parallelism: int) -> bytes:
        return self._told(Names(groups=groups, parallelism=parallelism))

    def _told(self, names: Names) -> bytes:
        (payload,) = encode_names(names)
        return pack(PacketKind.NAMES, payload, self.pid, 0)

    def packet(self, *records: bytes) -> bytes:
        return pack(PacketKind.RECORDS, b"".join(records), self.pid, 0, count=len(records))

    def record(self, kind: RecordKind, flags: int, *fields: int) -> bytes:
        return RECORD.pack(kind, flags, self.ordinal, *fields, *(0,) * (7 - len(fields)))

    def phase(self, name: str, wait_ns: int = 0, cpu_ns: int = UNKNOWN) -> bytes:
        """Ten milliseconds, now."""
        fields = (self.names[name], self.now_ns, 10 * MS, wait_ns, cpu_ns, UNKNOWN)
        return self.record(RecordKind.PHASE, 0, *fields)

    def comm(
        self, op: str, seq: int, *, group: str = "dp-0", peer: int = -1, end_ns: int | None = None
    ) -> bytes:
        """An operator that finished, or without an end one that is open."""
        fields = (self.names[group], pack_peer(self.names[op], peer), seq, 64, self.now_ns)
        if end_ns is None:
            return self.record(RecordKind.COMM, COMM_OPEN, *fields, UNKNOWN, UNKNOWN)
        return self.record(RecordKind.COMM, COMM_DONE, *fields, end_ns, 0)

    def kernel(
        self, name: str, start_ns: int, duration_ns: int, stream: int = 7,
        launched_ns: int | None = -50,
    ) -> bytes:  # fmt: skip
        """A kernel that ran; its launch as seen from its start, or not seen."""
        enqueue = UNKNOWN if launched_ns is None else start_ns + launched_ns
        fields = (self.names[name], stream, start_ns, duration_ns, enqueue)
        return self.record(RecordKind.KERNEL, 0, *fields)

    def iteration(self, loads: int = 1, compute_ns: int = 0, optimizers: int = 1) -> list[bytes]:
        """The events of one training iteration; tell `loader` and `optimizer` first."""
        out = [self._event(EventKind.LOAD, "loader") for _ in range(loads)]
        self.now_ns += compute_ns
        for _ in range(optimizers):
            out.append(self._event(EventKind.OPTIMIZER, "optimizer"))
            self.ordinal += 1
        return out

    def _event(self, kind: EventKind, name: str) -> bytes:
        start, self.now_ns = self.now_ns, self.now_ns + 5 * MS
        return self.record(RecordKind.EVENT, kind, self.names[name], start, self.now_ns)


PYTHON_AT, CUPTI_AT, NCCL_AT = 5, 6, 7
"""The connections of one process's producers."""


class ThreeProducers:
    """Rank 3 of 8: of its producers only Python knows the rank."""

    def __init__(self) -> None:
        self.state = HostState()
        self.python = Producer(3, world_size=8)
        self.cupti = Producer(0, world_size=1, source="cupti")
        self.nccl = Producer(0, world_size=1, source="nccl")
