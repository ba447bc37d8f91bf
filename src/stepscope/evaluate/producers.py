"""The packets that the ranks of a simulated job would have sent to their hosts' processors.

What is lost on this way, because the wire of this release cannot say it: when the host issued an
operator (the wire has one time for its beginning, and gets when it reached the device), operators
that had not begun, and the column `match`. A phase that is communication from end to end, of which
the tables do not say how long it waited, waits all the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.processor.normalise import RECORD_TYPE, Records
from stepscope.trace import DATA_LOAD, Host, Job
from stepscope.window import NULL, Ints, Strings, Table, Window
from stepscope.wire.frames import (
    MAX_RECORDS,
    GroupInfo,
    Hello,
    Names,
    PacketKind,
    encode_hello,
    encode_names,
    pack,
)
from stepscope.wire.records import COMM_DONE, COMM_OPEN, UNKNOWN, EventKind, RecordKind

TABLES = ("steps", "phases", "comm_ops", "pauses")
"""What the hooks inside a training process send."""
LOADER, OPTIMIZER = "DataLoader", "optimizer"
BEFORE_NS = 3_600_000_000_000
"""Hosts have been up for an hour when the job begins."""


@dataclass(frozen=True)
class Packet:
    """One packet, and when it is sent."""

    moment_ns: int
    rank: int
    data: bytes


class Producers:
    """All ranks of a job."""

    def __init__(self, window: Window, store: str) -> None:
        self._job = window.job
        self._store = store
        self._tables = {name: _by_rank(window.table(name)) for name in TABLES}
        self._names: dict[str, int] = {}
        self._texts: list[str] = []

    def of(self, host: Host) -> Iterator[Packet]:
        """Everything the ranks of a host send, in the order of time."""
        told = [packet for rank in host.ranks for packet in self._of(host, rank)]
        # a rank's own packets stay in order: sorting is stable
        yield from sorted(told, key=lambda packet: packet.moment_ns)

    @cached_property
    def offset_ns(self) -> int:
        """Wall clock minus monotonic clock."""
        tables = [*self._tables["steps"].values(), *self._tables["phases"].values()]
        starts = [int(table.ints("start_ns").min()) for table in tables]
        return min(starts, default=BEFORE_NS) - BEFORE_NS

    @cached_property
    def _groups(self) -> Mapping[int, Sequence[GroupInfo]]:
        found: dict[int, list[GroupInfo]] = {}
        for group in self._job.groups:
            info = GroupInfo(group.id, group.kind, group.ranks)
            for rank in group.ranks:
                found.setdefault(rank, []).append(info)
        return found

    def _of(self, host: Host, rank: int) -> Iterator[Packet]:
        begun = self.offset_ns + BEFORE_NS
        hello = Hello(
            self._job.job_id, self._store, host.name, rank, self._job.world_size,
            host.ranks.index(rank), 1 + rank, 1 + rank, self.offset_ns, 0,
        )  # fmt: skip
        yield Packet(begun, rank, _packet(PacketKind.HELLO, encode_hello(hello), rank))
        moments, records = self._records(rank)
        used = np.unique(records["field"][records["kind"] != RecordKind.COMM, 0])
        comm = records["field"][records["kind"] == RecordKind.COMM]
        ids = {*used.tolist(), *comm[:, 0].tolist(), *(comm[:, 1] >> 32).tolist()}
        names = Names({one: self._texts[one] for one in sorted(ids)},
                      tuple(self._groups.get(rank, ())), self._job.parallelism)  # fmt: skip
        for payload in encode_names(names):
            yield Packet(begun, rank, _packet(PacketKind.NAMES, payload, rank))
        for first in range(0, len(records), MAX_RECORDS):
            part = records[first : first + MAX_RECORDS]
            sent = max(int(moments[first : first + MAX_RECORDS].max()), begun)
            data = _packet(PacketKind.RECORDS, part.tobytes(), rank, len(part))
            yield Packet(sent, rank, data)

    def _records(self, rank: int) -> tuple[Ints, Records]:
        """All records of a rank in the order in which they were made, and when each was."""
        parts = []
        phases, operators, pauses = (self._tables[name].get(rank) for name in TABLES[1:])
        if phases is not None:
            parts.append(self._phases(phases))
        if operators is not None:
            parts.append(self._operators(operators))
        if pauses is not None:
            parts.append(self._pauses(pauses))
        parts += self._events(rank)
        moments = np.concatenate([moment for moment, _ in parts] or [np.zeros(0, np.int64)])
        records = np.concatenate([made for _, made in parts] or [np.zeros(0, RECORD_TYPE)])
        order = np.argsort(moments, kind="stable")
        return moments[order], records[order]

    def _phases(self, table: Table) -> tuple[Ints, Records]:
        start, lasted = table.ints("start_ns"), table.ints("duration_ns")
        wait = table.ints("wait_ns") if table.has("wait_ns") else np.zeros_like(lasted)
        waits = table.mask("waits") if table.has("waits") else wait > 0
        wait = np.where(wait == NULL, np.where(waits, lasted, 0), wait)
        fields = (self._ids(table, "phase"), start - self.offset_ns, lasted, wait,
                  np.full_like(lasted, UNKNOWN), table.ints("microbatch"))  # fmt: skip
        return start + lasted, _made(RecordKind.PHASE, 0, table.ints("step"), *fields)

    def _operators(self, table: Table) -> tuple[Ints, Records]:
        table = table.take(table.ints("start_ns") != NULL)
        start, end = table.ints("start_ns"), table.ints("end_ns")
        running = end == NULL
        peer = table.ints("peer") & 0xFFFFFFFF
        fields = (
            self._ids(table, "group"), (self._ids(table, "op") << 32) | peer, table.ints("seq"),
            _known(table, "bytes"), start - self.offset_ns,
            np.where(running, UNKNOWN, end - self.offset_ns), _known(table, "blocked_ns"),
        )  # fmt: skip
        flags = np.where(running, COMM_OPEN, COMM_DONE)
        made = _made(RecordKind.COMM, flags, table.ints("step"), *fields)
        return np.where(running, start, end), made

    def _pauses(self, table: Table) -> tuple[Ints, Records]:
        start, lasted = table.ints("start_ns"), table.ints("duration_ns")
        fields = (self._ids(table, "kind"), start - self.offset_ns, lasted)
        return start + lasted, _made(RecordKind.PAUSE, 0, table.ints("step"), *fields)

    def _events(self, rank: int) -> list[tuple[Ints, Records]]:
        """The calls that steps are found from: a step begins with a batch and ends with an
        optimizer step. Of a step that never ended, the batch alone was seen."""
        table = self._tables["steps"].get(rank)
        if table is None:
            return []
        step, start = table.ints("step"), table.ints("start_ns")
        end = start + table.ints("duration_ns")
        begun, since = self._begun(rank, int(step.max()))
        loads, load_steps = np.append(start, since), np.append(step, begun)
        return [(end, self._event(EventKind.OPTIMIZER, OPTIMIZER, step, end)),
                (loads, self._event(EventKind.LOAD, LOADER, load_steps, loads))]  # fmt: skip

    def _begun(self, rank: int, last: int) -> tuple[Ints, Ints]:
        """Steps after the last finished one whose batch was there, and since when."""
        table = self._tables["phases"].get(rank)
        if table is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        rows = table.strings("phase").equals(DATA_LOAD) & (table.ints("step") > last)
        return table.ints("step")[rows], table.ints("start_ns")[rows]

    def _event(self, kind: EventKind, name: str, step: Ints, moment: Ints) -> Records:
        at = moment - self.offset_ns
        return _made(RecordKind.EVENT, int(kind), step, np.full_like(step, self._id(name)), at, at)

    def _id(self, text: str) -> int:
        found = self._names.setdefault(text, len(self._texts))
        if found == len(self._texts):
            self._texts.append(text)
        return found

    def _ids(self, table: Table, column: str) -> Ints:
        words: Strings = table.strings(column)
        known = np.array([self._id(text) for text in words.values], np.int64)
        return known[words.codes]


def on_hosts(job: Job) -> Mapping[int, str]:
    """The host of every rank."""
    return {rank: host.name for host in job.hosts for rank in host.ranks}


def _by_rank(table: Table | None) -> Mapping[int, Table]:
    return {} if table is None else dict(table.per_rank())


def _made(kind: RecordKind, flags: int | Ints, step: Ints, *fields: Ints) -> Records:
    made = np.zeros(len(step), RECORD_TYPE)
    made["kind"], made["flags"], made["ordinal"] = int(kind), flags, step
    for at, values in enumerate(fields):
        made["field"][:, at] = values
    return made


def _known(table: Table, column: str) -> Ints:
    if not table.has(column):
        return np.full(len(table), UNKNOWN)
    values = table.ints(column)
    return np.where(values == NULL, UNKNOWN, values)


def _packet(kind: PacketKind, payload: bytes, rank: int, count: int = 0) -> bytes:
    return pack(kind, payload, 1 + rank, 0, count)
