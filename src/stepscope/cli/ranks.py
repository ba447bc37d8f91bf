"""Sends the records of simulated ranks to a running processor, as real ranks do.

Each simulated rank has the bounded queue and the sender of a training process: it never waits for
the processor, it reconnects, and it counts dropped records. One processor serves all hosts of the
job; each rank names its host. What a processor samples itself (counters, call stacks) and what no
rank sends (transfers) is left out.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.exits import print_stderr
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
"""Recorder name of the writer of job.json, where a processor would use its host name."""
_OTHER_FILES = 64
"""Open files of this process besides the connections of its ranks."""
_CLOSERS = 64
"""Ranks that close in parallel; each may take up to a second to send its last records."""

Packets = list[tuple[PacketKind, bytes]]


class ProcessorSink:
    """All ranks of a job, and the processor that serves them; it is started if none answers."""

    def __init__(self, job: Job, out: str, socket: Path) -> None:
        """Raises UsageError: the job cannot be created, or the processor does not start."""
        store, self._name = store_and_name(out)
        job = replace(job, job_id=self._name)
        _allow_open_files(job.world_size)
        self._processor = HostProcessor(socket)
        self._processor.ensure()
        _describe(job, store)
        self._ranks = _ranks_of(job, store, socket)
        self._sent_open = False

    def take(self, slice: Slice, due_ns: int) -> None:
        """Queues the rows of a slice. The rows of a step that never ends are sent only once."""
        self._processor.keep()
        if slice.now and self._sent_open:
            return
        self._sent_open = bool(slice.now)
        tables = slice.now or slice.new
        rows = {name: by_rank(tables.get(name)) for name in TABLES}
        for number, rank in self._ranks.items():
            rank.record({name: of[number] for name, of in rows.items() if number in of})

    def close(self) -> None:
        """Sends the remaining records, has them stored, and prints how many were lost."""
        with ThreadPoolExecutor(_CLOSERS) as pool:
            lost = sum(pool.map(Rank.close, self._ranks.values()))
        if lost:
            print_stderr(f"{count(lost, 'record')} did not reach the processor, which was too slow")
        try:
            self._processor.flush(self._name)
        except StepscopeError as error:
            print_stderr(str(error))


class Rank:
    """One simulated rank: its records, its queue and its connection."""

    def __init__(self, hello: Hello, known: Names, socket: Path, room: int = QUEUE_RECORDS) -> None:
        self._hello = hello
        self._known = known
        self._records = RankRecords(hello.wall_ns - hello.mono_ns)
        self._cost = self._records.name("stepscope_sender_cpu_ns")
        self._dropped = {table: self._records.name(f"dropped.{table}")
                         for table in TABLE_OF_KIND.values()}  # fmt: skip
        self._open_ops: list[tuple[int, ...]] = []
        self._queue = RecordQueue(room)
        self._cost_sent_at = 0.0
        self._sender = Sender(
            str(socket), self._queue, self._introduce, self._before_flush, lambda: False
        )
        self._sender.start()

    def record(self, tables: Mapping[str, Table]) -> None:
        """Queues the records of some rows; drops those that do not fit into the queue."""
        before = len(self._records.names)
        _, made = self._records.of(tables)
        self._send_names(before)
        columns = (made[name].tolist() for name in ("kind", "flags", "ordinal", "field"))
        records = [(kind, flags, ordinal, *fields)
                   for kind, flags, ordinal, fields in zip(*columns, strict=True)]  # fmt: skip
        self._open_ops += [r for r in records if r[:2] == (RecordKind.COMM, COMM_OPEN)]
        for record in records:
            self._queue.put(*record)

    def close(self) -> int:
        """Sends remaining records for at most a second; returns how many were lost."""
        self._sender.close()
        return self._queue.total_dropped + len(self._queue)

    def _send_names(self, first: int) -> None:
        """Sends the names whose number is at least `first`."""
        names = {id: text for text, id in self._records.names.items() if id >= first}
        for payload in encode_names(Names(names)) if names else ():
            self._sender.say(PacketKind.NAMES, payload)

    # --- on the sender's thread --------------------------------------------------------------

    def _introduce(self, at_risk: AtRisk | None) -> Packets:
        """The first packets of a connection; a new processor also gets the open operators again."""
        for record in self._open_ops:
            self._queue.put(*record)
        names = {id: text for text, id in dict(self._records.names).items()}
        known = encode_names(replace(self._known, names=names))
        hello = encode_hello(replace(self._hello, at_risk=at_risk))
        return [(PacketKind.HELLO, hello), *((PacketKind.NAMES, payload) for payload in known)]

    def _before_flush(self) -> None:
        for drop in self._queue.newly_dropped():
            self._count(self._dropped[drop.table], drop.rows, drop.end_ns, drop.start_ns)
        if time.monotonic() - self._cost_sent_at >= COST_SECONDS:
            # a failed send tells an otherwise silent rank that its processor is gone
            self._cost_sent_at = time.monotonic()
            self._count(self._cost, self._sender.cpu_ns, time.monotonic_ns())

    def _count(self, name: int, value: int, now_ns: int, since_ns: int = 0) -> None:
        self._queue.put_always(RecordKind.COUNT, 0, 0, name, value, now_ns, since_ns, 0, 0, 0)


def _ranks_of(job: Job, store: str, socket: Path) -> Mapping[int, Rank]:
    """One simulated rank each; all share this machine's clock, plus simulated clock offsets."""
    groups, now = groups_of(job), (time.time_ns(), time.monotonic_ns())
    return {
        rank: Rank(hello_of(job, store, host, rank, *now),
                   Names(groups=groups.get(rank, ()), parallelism=job.parallelism), socket)
        for host in job.hosts
        for rank in host.ranks
    }  # fmt: skip


def store_and_name(out: str) -> tuple[str, str]:
    """The store and the job name for which a processor writes exactly this folder.

    Raises:
        UsageError: a processor never writes such a folder.
    """
    folder = absolute_store(out.rstrip("/"))
    store, _, name = folder.rpartition("/")
    if store.endswith(":/"):
        raise UsageError(f"{folder} is a bucket; add the name of a folder in it to --out")
    made = str(job_location(store or "/", name))
    if made.rpartition("/")[2] != name:
        raise UsageError(f"a processor cannot write {folder}: it would name the folder of that "
                         f"job {made}; name another --out")  # fmt: skip
    return store or "/", name


def _allow_open_files(ranks: int) -> None:
    """Raises the limit of open files: each rank has a connection here and in the processor."""
    needed = ranks + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise UsageError(f"{ranks} ranks need {needed} open files, and this machine allows {hard}; "
                         "use fewer --ranks, or leave out --socket")  # fmt: skip
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _describe(job: Job, store: str) -> None:
    """Writes devices, schedule and fabric, which a processor cannot find out itself."""
    writer = JobWriter(job_location(store, job.job_id), _SCHEDULER)
    writer.write_job(replace(job, groups=(), parallelism={}))
    writer.close()
