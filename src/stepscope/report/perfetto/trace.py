"""A whole trace: the verdicts, then rank by rank everything that is known of it, then the hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from stepscope.diagnose.finding import ClockFit, Diagnosis, Verdict
from stepscope.perfetto.packets import GroupWriter, clock_packet
from stepscope.perfetto.process import (
    OF_NO_RANK,
    host_group,
    host_packets,
    rank_group,
    rank_packets,
)
from stepscope.perfetto.slices import LATEST_NS, Group, Slices, Track
from stepscope.report import units
from stepscope.window import Ints, Strings, Table, Window

_TIMES = ("start_ns", "end_ns", "enqueue_ns", "ts_ns")
LEAST_OFFSET_NS = 1_000
"""Clocks closer than this are not worth a label."""


@dataclass(frozen=True)
class Scene:
    """What is drawn: rows on one clock, and what diagnosis makes of them."""

    window: Window
    diagnosis: Diagnosis
    span_ns: tuple[int, int]
    """Where the whole recording begins and ends; what never ended is drawn up to there."""
    ranks: tuple[int, ...] = field(default=())


def span_of(window: Window, verdicts: Iterable[Verdict] = ()) -> tuple[int, int]:
    """The first and the last time of any row, or until when recorders or verdicts had looked."""
    times = [table.ints(name) for table in window.tables.values()
             for name in _TIMES if table.has(name)]  # fmt: skip
    times += [_ends(table) for table in window.tables.values()]
    known = [part[(part > 0) & (part < LATEST_NS)] for part in times]
    first = min((int(part.min()) for part in known if part.size), default=0)
    last = max((int(part.max()) for part in known if part.size), default=0)
    looked = [verdict.time_ns[1] for verdict in verdicts if verdict.time_ns is not None]
    return first, max(last, window.job.observed_until_ns or 0, *looked)


def _ends(table: Table) -> Ints:
    if not table.has("start_ns", "duration_ns"):
        return np.zeros(0, np.int64)
    start, duration = table.ints("start_ns"), table.ints("duration_ns")
    known = (start > 0) & (start < LATEST_NS) & (duration > 0) & (duration < LATEST_NS)
    return start[known] + duration[known]


def draw(scene: Scene, write: Callable[[bytes], object], drawn: Callable[[int], object]) -> int:
    """Writes the trace piece by piece; `drawn` hears of every rank. Returns how many slices."""
    write(clock_packet())
    slices = _draw(_verdict_group(scene), write)
    for rank, tables in per_rank(scene.window, scene.ranks):
        slices += _draw(_rank_group(scene, rank, tables), write)
        drawn(rank)
    for group in _hosts(scene):
        slices += _draw(group, write)
    return slices


@dataclass(frozen=True)
class _Drawing:
    """A group, and its packets once its writer is asked for them."""

    writer: GroupWriter
    packets: Iterable[bytes]


def _draw(drawing: _Drawing, write: Callable[[bytes], object]) -> int:
    """Groups without a single row are left out."""
    head = drawing.writer.head()
    for packet in drawing.packets:
        if head:
            write(head)
            head = b""
        write(packet)
    return drawing.writer.slices


def _rank_group(scene: Scene, rank: int, tables: Mapping[str, Table]) -> _Drawing:
    host = scene.window.host_of(rank)
    largest = max(scene.window.job.world_size - 1, *scene.ranks)
    writer = GroupWriter(rank_group(rank, largest, host, tuple(_labels(scene, rank, host))))
    return _Drawing(writer, _with_verdicts(writer, scene, rank, tables))


def _with_verdicts(
    writer: GroupWriter, scene: Scene, rank: int, tables: Mapping[str, Table]
) -> Iterator[bytes]:
    mine = [verdict for verdict in scene.diagnosis.verdicts if rank in verdict.ranks]
    yield from writer.track(Track("Verdicts", _verdicts(mine, scene.span_ns)))
    yield from rank_packets(writer, tables, scene.span_ns[1])


def _labels(scene: Scene, rank: int, host: str | None) -> Iterator[str]:
    """Shown beside a rank's name: that it is to blame, and how far its clock was moved."""
    for verdict in scene.diagnosis.verdicts:
        if rank in verdict.ranks:
            yield f"culprit: {_trouble(verdict)}"
    for clock in scene.diagnosis.clocks:
        if _is_of(clock, rank, host) and abs(clock.offset_ns) >= LEAST_OFFSET_NS:
            yield f"clock moved by {units.duration(-clock.offset_ns)}"


def _is_of(clock: ClockFit, rank: int, host: str | None) -> bool:
    return clock.rank == rank if clock.rank is not None else clock.host == host


def _verdict_group(scene: Scene) -> _Drawing:
    writer = GroupWriter(Group("diagnosis", "diagnosis", OF_NO_RANK))
    slices = _verdicts(scene.diagnosis.verdicts, scene.span_ns)
    return _Drawing(writer, writer.track(Track("Verdicts", slices)))


def _verdicts(verdicts: Iterable[Verdict], span_ns: tuple[int, int]) -> Slices:
    """The verdicts over the time in which they hold, or the whole recording."""
    every = list(verdicts)
    spans = [verdict.time_ns or span_ns for verdict in every]
    begin, end = (np.array([span[at] for span in spans], np.int64) for at in (0, 1))
    names = Strings.of([f"{_trouble(verdict)}: {verdict.summary}" for verdict in every])
    return Slices(begin, end, names, {
        "kind": Strings.of([verdict.kind for verdict in every]),
        "cause": Strings.of([verdict.cause for verdict in every]),
        "ranks": Strings.of([_ranks(verdict) for verdict in every]),
        "advice": Strings.of([verdict.advice for verdict in every]),
        "confidence": Strings.of([units.percent(verdict.confidence) for verdict in every]),
        "lost": Strings.of([_lost(verdict) for verdict in every]),
    })  # fmt: skip


def _trouble(verdict: Verdict) -> str:
    """In a word: the cause, or what happened where that is all we know."""
    return verdict.kind if verdict.cause == "unknown" else verdict.cause


def _ranks(verdict: Verdict) -> str:
    return units.ranks(verdict.ranks) if verdict.ranks else "no rank in particular"


def _lost(verdict: Verdict) -> str | None:
    lost = verdict.lost_fraction
    return None if lost is None else f"{units.percent(lost)} of the step time"


def _hosts(scene: Scene) -> Iterator[_Drawing]:
    """Counters of whole hosts."""
    hardware = scene.window.table("hardware")
    if hardware is None or not hardware.has("rank", "host"):
        return
    hardware = hardware.take(hardware.ints("rank") < 0)
    host = hardware.strings("host")
    for code in np.unique(host.codes).tolist():
        if code >= 0:
            writer = GroupWriter(host_group(host.values[code]))
            rows = hardware.take(host.codes == code)
            yield _Drawing(writer, host_packets(writer, {"hardware": rows}))


def per_rank(window: Window, ranks: Iterable[int]) -> Iterator[tuple[int, Mapping[str, Table]]]:
    """The rows of each rank in every table; ranks without any have no tables."""
    sorted_by_rank = {name: _Sorted.of(table) for name, table in window.tables.items()
                      if table.has("rank")}  # fmt: skip
    for rank in ranks:
        tables = {name: rows.of_rank(rank) for name, rows in sorted_by_rank.items()}
        yield rank, {name: table for name, table in tables.items() if len(table)}


@dataclass(frozen=True)
class _Sorted:
    """A table and the order of its rows by rank: each rank's rows are copied when asked for."""

    table: Table
    order: Ints
    ranks: Ints

    @classmethod
    def of(cls, table: Table) -> _Sorted:
        ranks = table.ints("rank")
        order = np.argsort(ranks, kind="stable")
        return cls(table, order, ranks[order])

    def of_rank(self, rank: int) -> Table:
        first, stop = np.searchsorted(self.ranks, [rank, rank + 1])
        return self.table.take(self.order[first:stop])
