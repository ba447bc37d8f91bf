"""The ranks of a simulated job, connected to a running processor as those of a real one are.

Each has the bounded queue and the sender that it would have in a training process: it never waits
for the processor, reconnects, and counts what it has no room for. The processor stands for all
hosts of the job; a rank says itself on which it is. What a processor sees by itself (counters, call
stacks) and what no rank sends (transfers) does not go this way.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.exits import complain
from stepscope.cli.launch import HostProcessor, absolute_store
from stepscope.collect.sender import QUEUE_RECORDS, RecordQueue, Sender
from stepscope.collect.session import COST_SECONDS
from stepscope.errors import StepscopeError, UsageError
from stepscope.evaluate.producers import groups_of, hello_of
from stepscope.evaluate.records import TABLES, RankRecords, by_rank
from stepscope.report.units import count
from stepscope.store.layout import job_location
from stepscope.store.writer import JobWriter
from stepscope.wire.frames import AtRisk, Hello, Names, PacketKind, encode_hello, encode_names
from stepscope.wire.records import COMM_OPEN, TABLE_OF_KIND, RecordKind

if TYPE_CHECKING:
    from stepscope.simulate.live import Slice
    from stepscope.trace import Job
    from stepscope.window import Table

_SCHEDULER = "scheduler"
"""In place of a host: who knows what the job was started with."""
_OTHER_FILES = 64
"""Open files of this process besides its ranks' connections."""
_CLOSERS = 64
"""Ranks that say their last words side by side: each has a second for them."""

Packets = list[tuple[PacketKind, bytes]]


class ThroughProcessor:
    """All ranks, and the processor that serves them: found running at the socket, or started."""

    def __init__(self, job: Job, out: str, socket: Path) -> None:
        """Raises UsageError: there can be no such job or no such processor."""
        store, self._name = store_and_name(out)
        job = replace(job, job_id=self._name)
        _make_room(job.world_size)
        self._processor = HostProcessor(socket)
        self._processor.ensure()
        _describe(job, store)
        self._ranks = _ranks_of(job, store, socket)
        self._told_last = False

    def take(self, one: Slice, due_ns: int) -> None:
        """Queues what this slice adds. A step that does not end is told of once: then ranks are
        silent."""
        self._processor.keep()
        if one.now and self._told_last:
            return
        self._told_last = bool(one.now)
        tables = one.now or one.new
        rows = {name: by_rank(tables.get(name)) for name in TABLES}
        for number, rank in self._ranks.items():
            rank.tell({name: of[number] for name, of in rows.items() if number in of})

    def close(self) -> None:
        """Sends what is left, has it stored, and says what had no room."""
        with ThreadPoolExecutor(_CLOSERS) as pool:
            lost = sum(pool.map(Rank.close, self._ranks.values()))
        if lost:
            complain(f"the processor took too little: {count(lost, 'record')} did not reach it")
        try:
            self._processor.flush(self._name)
        except StepscopeError as error:
            complain(str(error))


class Rank:
    """One rank: what its hooks record, its queue and its connection."""

    def __init__(self, hello: Hello, known: Names, socket: Path, room: int = QUEUE_RECORDS) -> None:
        self._hello = hello
        self._known = known
        self._records = RankRecords(hello.wall_ns - hello.mono_ns)
        self._cost = self._records.name("stepscope_sender_cpu_ns")
        self._dropped = {table: self._records.name(f"dropped.{table}")
                         for table in TABLE_OF_KIND.values()}  # fmt: skip
        self._in_flight: list[tuple[int, ...]] = []
        self._queue = RecordQueue(room)
        self._told_cost_at = 0.0
        self._sender = Sender(
            str(socket), self._queue, self._introduce, self._before_flush, lambda: False
        )
        self._sender.start()

    def tell(self, tables: Mapping[str, Table]) -> None:
        """Queues the records of some rows, as far as there is room."""
        before = len(self._records.names)
        _, made = self._records.of(tables)
        self._say_names(before)
        columns = (made[name].tolist() for name in ("kind", "flags", "ordinal", "field"))
        records = [(kind, flags, ordinal, *fields)
                   for kind, flags, ordinal, fields in zip(*columns, strict=True)]  # fmt: skip
        self._in_flight += [one for one in records if one[:2] == (RecordKind.COMM, COMM_OPEN)]
        for one in records:
            self._queue.put(*one)

    def close(self) -> int:
        """Sends what is left for at most a second; how many records did not get through."""
        self._sender.close()
        return self._queue.total_dropped + len(self._queue)

    def _say_names(self, first: int) -> None:
        """Those that came since there were so many."""
        names = {id: text for text, id in self._records.names.items() if id >= first}
        for payload in encode_names(Names(names)) if names else ():
            self._sender.say(PacketKind.NAMES, payload)

    # --- on the sender's thread --------------------------------------------------------------

    def _introduce(self, at_risk: AtRisk | None) -> Packets:
        """A new processor is told again what is in flight."""
        for one in self._in_flight:
            self._queue.put(*one)
        names = {id: text for text, id in dict(self._records.names).items()}
        told = encode_names(replace(self._known, names=names))
        hello = encode_hello(replace(self._hello, at_risk=at_risk))
        return [(PacketKind.HELLO, hello), *((PacketKind.NAMES, payload) for payload in told)]

    def _before_flush(self) -> None:
        for drop in self._queue.newly_dropped():
            self._count(self._dropped[drop.table], drop.rows, drop.end_ns, drop.start_ns)
        if time.monotonic() - self._told_cost_at >= COST_SECONDS:
            # by it a rank that has nothing else to say learns that its processor is gone
            self._told_cost_at = time.monotonic()
            self._count(self._cost, self._sender.cpu_ns, time.monotonic_ns())

    def _count(self, name: int, value: int, now_ns: int, since_ns: int = 0) -> None:
        self._queue.put_always(RecordKind.COUNT, 0, 0, name, value, now_ns, since_ns, 0, 0, 0)


def _ranks_of(job: Job, store: str, socket: Path) -> Mapping[int, Rank]:
    """All have the clock of this machine, apart from what their hosts' simulated clocks show."""
    groups, now = groups_of(job), (time.time_ns(), time.monotonic_ns())
    return {
        rank: Rank(hello_of(job, store, host, rank, *now),
                   Names(groups=groups.get(rank, ()), parallelism=job.parallelism), socket)
        for host in job.hosts
        for rank in host.ranks
    }  # fmt: skip


def store_and_name(out: str) -> tuple[str, str]:
    """Where a processor would make this folder, and for a job of which name."""
    folder = absolute_store(out.rstrip("/"))
    store, _, name = folder.rpartition("/")
    if store.endswith(":/"):
        raise UsageError(f"{folder} is a bucket; name the folder in it that --out shall be")
    made = str(job_location(store or "/", name))
    if made.rpartition("/")[2] != name:
        raise UsageError(f"a processor cannot write {folder}: the folder of a job of that name "
                         f"is {made}; name another --out")  # fmt: skip
    return store or "/", name


def _make_room(ranks: int) -> None:
    """Every rank has a connection of its own here, and one in a processor that we start."""
    needed = ranks + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise UsageError(f"{ranks} ranks need {needed} open files, and this machine allows {hard}; "
                         "take fewer --ranks, or leave out --socket")  # fmt: skip
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _describe(job: Job, store: str) -> None:
    """Devices, schedule and fabric, which the scheduler knows and no processor can look up."""
    writer = JobWriter(job_location(store, job.job_id), _SCHEDULER)
    writer.write_job(replace(job, groups=(), parallelism={}))
    writer.close()
