"""Writes Perfetto traces of a job's ranks on this host, which grow while the job runs.

    append ─▶ rows by table ─ every few seconds ─▶ by rank and window ─▶ a gzip member ─▶ a file

Each member is self-contained (names, tracks, clock), so a file is readable from any of its members
on, and up to the last complete one after a crash. Rows go to the file of the minute in which they
began; rows later than `LATE_NS` go to the oldest file still open. Times are the host's own; only
`stepscope trace` aligns the clocks of all hosts. The host's own file of each minute has what this
host knows of the job. Operators that are still outstanding are drawn when the job ends.

Lossy: between two members there is room for `MOST_ROWS` rows per table of a job. Rows beyond that,
impossible rows and rows that could not be written are counted by rank.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from stepscope.errors import StoreError
from stepscope.perfetto.description import description_packet
from stepscope.perfetto.members import packed_parts
from stepscope.perfetto.packets import GroupWriter, clock_packet
from stepscope.perfetto.process import (
    OF_NO_RANK,
    host_group,
    host_packets,
    rank_group,
    rank_packets,
)
from stepscope.perfetto.slices import Group
from stepscope.processor.records.normalise import Rows
from stepscope.processor.records.tables import joined
from stepscope.store.buffer import Loss
from stepscope.store.layout import host_trace_folder, trace_folder, trace_name
from stepscope.store.traces import TraceFiles
from stepscope.trace import TABLES, Job
from stepscope.window import Ints, Table

logger = logging.getLogger(__name__)

TRACE_SECONDS = 15.0
"""Between two members; a crash loses this much."""
WINDOW_NS = 60_000_000_000
LATE_NS = 35_000_000_000
"""py-spy delivers its samples every 30 s."""
AHEAD_NS = 5_000_000_000
"""Rows further in the future are impossible: a clock jumped."""
MOST_ROWS = 1 << 19
"""Per table and job between two members: for eight ranks 2.6 times the 1e5 kernels per minute of
ARGUS (section 5.2). 30 MB."""
DRAWN = ("steps", "phases", "pauses", "comm_ops", "kernels", "stacks", "hardware")
_HOST_LEVEL = -1
_EVER = np.iinfo(np.int64)

Tables = Mapping[str, Table]


@dataclass
class _Waiting:
    """Rows of one table that are not in a member yet."""

    pieces: list[Rows] = field(default_factory=list)
    rows: int = 0


class JobTraces:
    """The traces of one job. `append` may be called from any thread, the others from one."""

    def __init__(self, files: TraceFiles, host: str) -> None:
        self.job = Job("", 0)
        """What is known of the job; its size decides the number of digits in rank names."""
        self.outstanding: Rows = {}
        """The operators that have not ended."""
        self._files = files
        self._host = host
        self._session = secrets.token_hex(4)
        self._waiting: dict[str, _Waiting] = {}
        self._writers: dict[int, GroupWriter] = {}
        self._lost: dict[int, Loss] = {}
        self._described: tuple[int, Job] | None = None
        self._until_ns = 0
        """The latest time of anything that the job did: an open operator is drawn up to it."""
        self._in_trouble = False
        self._lock = threading.Lock()

    def append(self, table: str, rows: Rows) -> None:
        """Keeps rows for the next member while there is room."""
        if table not in DRAWN:
            return
        count = len(rows["rank"])
        with self._lock:
            waiting = self._waiting.setdefault(table, _Waiting())
            if waiting.rows + count <= MOST_ROWS:
                waiting.pieces.append(rows)
                waiting.rows += count
                return
        self._lose(joined(table, [rows]), table)

    def flush(self, now_ns: int) -> None:
        """Writes a member for every rank that has new rows."""
        newest = now_ns // WINDOW_NS
        oldest = min((now_ns - LATE_NS) // WINDOW_NS, newest)
        taken = self._taken(now_ns)
        if taken:
            taken.setdefault(_HOST_LEVEL, {})
        for rank, tables in sorted(taken.items()):
            for window, part in _by_window(tables, oldest, newest):
                self._write(rank, window, part, now_ns)
        self._settle(oldest)

    def close(self, now_ns: int) -> None:
        """Writes everything left."""
        if self.outstanding:
            self.append("comm_ops", self.outstanding)
        self.flush(now_ns)
        self._settle(now_ns // WINDOW_NS + 1)

    def take_lost(self) -> Mapping[int, Loss]:
        """Rows lost since the last call, by rank."""
        with self._lock:
            lost, self._lost = self._lost, {}
        return lost

    def _taken(self, now_ns: int) -> dict[int, dict[str, Table]]:
        """New rows, by rank."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        found: dict[int, dict[str, Table]] = {}
        for name, one in waiting.items():
            for rank, table in _by_rank(name, one.pieces):
                possible = self._possible(table, name, now_ns)
                if len(possible):
                    found.setdefault(rank, {})[name] = possible
        return found

    def _possible(self, table: Table, name: str, now_ns: int) -> Table:
        """Drops rows of the future, which would displace all following rows from their tracks."""
        ends = table.ints(TABLES[name].time)
        if table.has("duration_ns"):
            ends = ends + table.ints("duration_ns")
        false = ends > now_ns + AHEAD_NS
        if name != "hardware":  # of which there is more after a job's processes have ended
            self._until_ns = max(self._until_ns, int(ends[~false].max(initial=0)))
        if not false.any():
            return table
        self._lose(table.take(false), name)
        return table.take(~false)

    def _write(self, rank: int, window: int, tables: Tables, now_ns: int) -> None:
        member = self._member(rank, window, tables, now_ns)
        if not member:
            return
        try:
            self._files.add(self._path(rank, window), window, member)
            self._in_trouble = False
        except StoreError as error:
            self._complain(error)
            for name, table in tables.items():
                self._lose(table, name)

    def _path(self, rank: int, window: int) -> str:
        folder = host_trace_folder(self._host) if rank == _HOST_LEVEL else trace_folder(rank)
        return f"{folder}/{trace_name(window * WINDOW_NS / 1e9, self._session)}"

    def _member(self, rank: int, window: int, tables: Tables, now_ns: int) -> bytes:
        """A gzip member of the rows; empty if there is nothing to draw."""
        writer = self._writer(rank)
        head = clock_packet() + writer.head()
        packets: Iterator[bytes]
        if rank == _HOST_LEVEL:
            packets = chain(self._description(window, now_ns), host_packets(writer, tables))
        else:
            packets = rank_packets(writer, tables, self._until_ns)
        first = next(packets, None)
        return b"" if first is None else packed_parts(chain((head, first), packets))

    def _description(self, window: int, now_ns: int) -> Iterator[bytes]:
        """What is known of the job, in the newest file: once, and whenever that changes."""
        known = window, self.job
        if window == now_ns // WINDOW_NS and self.job.job_id and self._described != known:
            self._described = known
            yield description_packet(self.job, OF_NO_RANK)

    def _writer(self, rank: int) -> GroupWriter:
        if rank not in self._writers:
            self._writers[rank] = GroupWriter(self._group(rank))
        return self._writers[rank]

    def _group(self, rank: int) -> Group:
        if rank == _HOST_LEVEL:
            return host_group(self._host)
        largest = max(self.job.world_size - 1, rank)
        return rank_group(rank, largest, self.job.host_of(rank))

    def _settle(self, oldest: int) -> None:
        try:
            self._files.settle(oldest)
        except StoreError as error:
            self._complain(error)

    def _complain(self, error: StoreError) -> None:
        if not self._in_trouble:
            logger.warning("%s; these rows are missing in traces", error)
        self._in_trouble = True

    def _lose(self, table: Table, name: str) -> None:
        for rank, rows in table.per_rank():
            times = rows.ints(TABLES[name].time)
            loss = Loss(int(times.min()), int(times.max()), len(rows))
            with self._lock:
                before = self._lost.get(rank)
                self._lost[rank] = loss if before is None else before + loss


def _by_rank(name: str, pieces: Sequence[Rows]) -> Iterator[tuple[int, Table]]:
    """A table's rows by rank. If each piece is of one rank, as for kernels, pieces of
    different ranks are not concatenated, which took a third of drawing 1e5 kernels a minute."""
    alone: dict[int, list[Rows]] = {}
    for piece in pieces:
        ranks = np.asarray(piece["rank"])
        if (ranks != ranks[:1]).any():
            yield from joined(name, pieces).per_rank()
            return
        if ranks.size:
            alone.setdefault(int(ranks[0]), []).append(piece)
    for rank, own in alone.items():
        yield rank, joined(name, own)


def _by_window(tables: Tables, oldest: int, newest: int) -> Iterator[tuple[int, Tables]]:
    """Rows by the window in which they began; older and newer rows than the open windows go to the
    first and the last of them."""
    for window in range(oldest, newest + 1):
        first_ns = _EVER.min if window == oldest else window * WINDOW_NS
        last_ns = _EVER.max if window == newest else (window + 1) * WINDOW_NS - 1
        parts = {name: _within(table, table.ints(TABLES[name].time), first_ns, last_ns)
                 for name, table in tables.items()}  # fmt: skip
        yield window, {name: part for name, part in parts.items() if len(part)}


def _within(table: Table, times_ns: Ints, first_ns: int, last_ns: int) -> Table:
    """Rows of an interval; mostly all of them, which avoids a copy."""
    if times_ns.size and first_ns <= times_ns.min() and times_ns.max() <= last_ns:
        return table
    return table.take((times_ns >= first_ns) & (times_ns <= last_ns))
