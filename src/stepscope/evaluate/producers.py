"""The packets that the ranks of a simulated job would send to the processors of their hosts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from stepscope.evaluate.records import TABLES, RankRecords, by_rank
from stepscope.trace import Host, Job
from stepscope.window import Window
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

BEFORE_NS = 3_600_000_000_000
"""The hosts' monotonic clocks start an hour before the job."""
NO_PROCESS = 1 << 22
"""Linux never assigns this process number or a higher one (PID_MAX_LIMIT): a search for the process
of a simulated rank finds nothing, instead of an unrelated process."""

Groups = Mapping[int, tuple[GroupInfo, ...]]
"""The process groups of every rank."""


@dataclass(frozen=True)
class Packet:
    """A packet, and when it is sent."""

    moment_ns: int
    rank: int
    data: bytes


class Producers:
    """The senders of all ranks of a job."""

    def __init__(self, window: Window, store: str) -> None:
        self._job = window.job
        self._store = store
        self._tables = {name: by_rank(window.table(name)) for name in TABLES}
        self._groups = groups_of(window.job)

    def of(self, host: Host) -> Iterator[Packet]:
        """Everything that the ranks of a host send, ordered by time."""
        packets = [packet for rank in host.ranks for packet in self._of(host, rank)]
        # a rank's own packets stay in order: sorting is stable
        yield from sorted(packets, key=lambda packet: packet.moment_ns)

    @cached_property
    def offset_ns(self) -> int:
        """Wall clock minus monotonic clock."""
        tables = [*self._tables["steps"].values(), *self._tables["phases"].values()]
        starts = [int(table.ints("start_ns").min()) for table in tables]
        return min(starts, default=BEFORE_NS) - BEFORE_NS

    def _of(self, host: Host, rank: int) -> Iterator[Packet]:
        begun = self.offset_ns + BEFORE_NS
        hello = hello_of(self._job, self._store, host, rank, self.offset_ns)
        yield Packet(begun, rank, _packet(PacketKind.HELLO, encode_hello(hello), rank))
        maker = RankRecords(self.offset_ns)
        tables = {name: ranks[rank] for name, ranks in self._tables.items() if rank in ranks}
        moments, records = maker.of(tables)
        names = {id: text for text, id in maker.names.items()}
        for payload in encode_names(Names(names, self._groups.get(rank, ()),
                                          self._job.parallelism)):  # fmt: skip
            yield Packet(begun, rank, _packet(PacketKind.NAMES, payload, rank))
        for first in range(0, len(records), MAX_RECORDS):
            part = records[first : first + MAX_RECORDS]
            sent = max(int(moments[first : first + MAX_RECORDS].max()), begun)
            data = _packet(PacketKind.RECORDS, part.tobytes(), rank, len(part))
            yield Packet(sent, rank, data)


def hello_of(job: Job, store: str, host: Host, rank: int, wall_ns: int, mono_ns: int = 0) -> Hello:
    """The packet with which a rank introduces itself."""
    pid = NO_PROCESS + rank
    return Hello(job.job_id, store, host.name, rank, job.world_size, host.ranks.index(rank),
                 pid, pid, wall_ns, mono_ns)  # fmt: skip


def groups_of(job: Job) -> Groups:
    found: dict[int, list[GroupInfo]] = {}
    for group in job.groups:
        info = GroupInfo(group.id, group.kind, group.ranks)
        for rank in group.ranks:
            found.setdefault(rank, []).append(info)
    return {rank: tuple(groups) for rank, groups in found.items()}


def _packet(kind: PacketKind, payload: bytes, rank: int, count: int = 0) -> bytes:
    return pack(kind, payload, NO_PROCESS + rank, 0, count)
