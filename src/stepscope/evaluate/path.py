"""Sends a simulated job through all that a real one passes: wire, processor, store and reader.

One processor state per host receives the packets of its ranks, and its instructions are carried out
on that host's writer of the job folder, as `processor.daemon` does. Tables that do not come from
the ranks (counters, call stacks, transfers and patterns) are appended to the same writer, as the
processor's other sources do. Kernels are both summarised and kept one by one, as with
`stepscope processor --kernels`. A separate fragment of `job.json` holds the schedule and the
fabric, because no processor knows them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import singledispatchmethod

import numpy as np

from stepscope.errors import FormatError, StoreError
from stepscope.evaluate.producers import Producers
from stepscope.evaluate.records import TABLES as BY_WIRE
from stepscope.processor.folders.folder import NO_OPEN_OPS, OPEN_OPS_FILE
from stepscope.processor.instructions import Append, Instruction, JobKnown, OpenOps, Refuse, Stalled
from stepscope.processor.state.fragments import with_devices
from stepscope.processor.state.host_state import HOLD_NS, HostState
from stepscope.store.encode import Rows, rows_of
from stepscope.store.location import Location
from stepscope.store.reader import JobReader
from stepscope.store.writer import JobWriter
from stepscope.trace import TABLES, Host
from stepscope.window import Table, Window

MOST_ROWS = 1 << 24
"""Rows per table and host that may be buffered: enough that a simulated host never drops any."""
TICK_NS = 1_000_000_000
"""The daemon ticks more often, but nothing that it decides here happens faster than this."""
SCHEDULER = "scheduler"
"""Stands in for a host: the writer that knows how the job was started."""


def through_the_store(window: Window) -> Window:
    """The job as it is read back from the folder that the processors of its hosts wrote.

    Raises:
        StoreError: there is no space for it.
    """
    with tempfile.TemporaryDirectory(prefix="stepscope-evaluate-") as folder:
        location = Location.parse(folder).child("job")
        _write(window, location, folder)
        reader = JobReader(str(location))
        found = reader.read()
        if reader.problems:
            raise FormatError(f"a simulated job cannot be read back: {reader.problems[0]}")
        return found


def _write(window: Window, location: Location, store: str) -> None:
    producers = Producers(window, store)
    until_ns = window.job.observed_until_ns
    parts = _parts(window)
    for host in window.job.hosts:
        processor = _Processor(location, host)
        processor.play(producers, until_ns, _is_finished(window))
        for name, rows in parts.get(host.name, ()):
            processor.writer.append(name, rows)
        _close(processor.writer)
    writer = JobWriter(location, SCHEDULER)
    writer.write_job(replace(window.job, hosts=(), groups=(), parallelism={},
                             observed_until_ns=None))  # fmt: skip
    _close(writer)


def _is_finished(window: Window) -> bool:
    """Whether nothing started after the last finished step."""
    steps, phases = window.table("steps"), window.table("phases")
    operators = window.table("comm_ops")
    if steps is None:
        return False
    begun = [int(table.ints("step").max()) for table in (phases, operators) if table is not None]
    return max(begun, default=0) <= int(steps.ints("step").max())


def _close(writer: JobWriter) -> None:
    status = writer.close()
    if status.error is not None:
        raise StoreError(status.error)


class _Processor:
    """One host's processor state and writer."""

    def __init__(self, location: Location, host: Host) -> None:
        self._host = host
        self._state = HostState()
        self.writer = JobWriter(location, host.name, max_rows_per_file=MOST_ROWS,
                                buffer_rows=MOST_ROWS)  # fmt: skip
        self._now_ns = 0

    def play(self, producers: Producers, until_ns: int | None, finished: bool) -> None:
        """Handles all packets in order of time; then the ranks disconnect, or just stay silent."""
        ticked = 0
        for packet in producers.of(self._host):
            self._now_ns = now = packet.moment_ns
            if now - ticked >= TICK_NS:
                self._carry_out(self._state.tick(now))
                ticked = now
            self._carry_out(self._state.packet(packet.rank, packet.data, now))
        if finished:
            for rank in self._host.ranks:
                self._carry_out(self._state.disconnected(rank))
            return
        self._now_ns = max(self._now_ns + HOLD_NS + 1, until_ns or 0)
        self._carry_out(self._state.tick(self._now_ns))
        self._carry_out(self._state.stalled(self._now_ns))

    def _carry_out(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            self._do(instruction)

    @singledispatchmethod
    def _do(self, instruction: Instruction) -> None:
        """A simulated process cannot be watched, so instructions to do so are ignored."""

    @_do.register
    def _(self, it: Append) -> None:
        self.writer.append(it.table, it.rows)

    @_do.register
    def _(self, it: OpenOps) -> None:
        self.writer.replace("comm_ops", OPEN_OPS_FILE, it.rows or NO_OPEN_OPS)

    @_do.register
    def _(self, it: JobKnown) -> None:
        self.writer.write_job(with_devices(it.fragment, self._host))

    @_do.register
    def _(self, it: Stalled) -> None:
        self.writer.append("hardware", it.rows(self._now_ns))

    @_do.register
    def _(self, it: Refuse) -> None:
        raise FormatError(f"a processor refuses a simulated rank: {it.why}")


def _parts(window: Window) -> dict[str, list[tuple[str, Rows]]]:
    """The tables that do not come through the wire, as rows of the host they belong to."""
    found: dict[str, list[tuple[str, Rows]]] = {}
    for name, table in window.tables.items():
        if name in TABLES and name not in BY_WIRE and len(table):
            for host, part in _by_host(window, table):
                found.setdefault(host, []).append((name, rows_of(name, part)))
    return found


def _by_host(window: Window, table: Table) -> Iterator[tuple[str, Table]]:
    """A rank's rows belong to its host; rows without a rank name their host themselves."""
    hosts = window.job.hosts
    of_rank = np.full(window.job.world_size, -1, np.int32)
    for at, host in enumerate(hosts):
        of_rank[list(host.ranks)] = at
    ranks = table.ints("rank")
    number = of_rank[np.maximum(ranks, 0)]
    if table.has("host"):
        words = table.strings("host")
        place = {host.name: at for at, host in enumerate(hosts)}
        named = np.array([place.get(text, 0) for text in words.values], np.int32)[words.codes]
        number = np.where(ranks < 0, named, number)
    order = np.argsort(number, kind="stable")
    values, starts = np.unique(number[order], return_index=True)
    for value, rows in zip(values, np.split(order, starts[1:]), strict=True):
        yield hosts[int(value)].name, table.take(rows)
