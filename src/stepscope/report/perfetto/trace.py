"""Writes a whole trace: the job, the verdicts, then all data of each rank, then the hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from stepscope.diagnose.finding import Diagnosis, Verdict
from stepscope.diagnose.shown import ClockFit
from stepscope.perfetto.description import description_packet
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
"""Smaller clock offsets get no label."""


@dataclass(frozen=True)
class Scene:
    """What to draw: rows on one clock, and their diagnosis."""

    window: Window
    diagnosis: Diagnosis
    span_ns: tuple[int, int]
    """Begin and end of the whole recording; slices that never ended are drawn until its end."""
    ranks: tuple[int, ...] = field(default=())


def span_of(window: Window, verdicts: Iterable[Verdict] = ()) -> tuple[int, int]:
    """From the first time of any row to the last, or to the end of recording or of a verdict."""
    times = [table.ints(name) for table in window.tables.values()
             for name in _TIMES if table.has(name)]  # fmt: skip
    times += [_ends(table) for table in window.tables.values()]
    known = [part[(part > 0) & (part < LATEST_NS)] for part in times]
    first = min((int(part.min()) for part in known if part.size), default=0)
    last = max((int(part.max()) for part in known if part.size), default=0)
    verdict_ends = [verdict.time_ns[1] for verdict in verdicts if verdict.time_ns is not None]
    return first, max(last, window.job.observed_until_ns or 0, *verdict_ends)


def _ends(table: Table) -> Ints:
    if not table.has("start_ns", "duration_ns"):
        return np.zeros(0, np.int64)
    start, duration = table.ints("start_ns"), table.ints("duration_ns")
    known = (start > 0) & (start < LATEST_NS) & (duration > 0) & (duration < LATEST_NS)
    return start[known] + duration[known]


def draw(scene: Scene, write: Callable[[bytes], object], drawn: Callable[[int], object]) -> int:
    """Writes the trace in pieces; calls `drawn` after each rank. Returns the number of slices."""
    write(clock_packet())
    write(description_packet(scene.window.job, OF_NO_RANK))
    slices = _draw(_verdict_group(scene), write)
    for rank, tables in per_rank(scene.window, scene.ranks):
        slices += _draw(_rank_group(scene, rank, tables), write)
        drawn(rank)
    for group in _hosts(scene):
        slices += _draw(group, write)
    return slices


@dataclass(frozen=True)
class _Drawing:
    """A track group and its packets, which are generated lazily."""

    writer: GroupWriter
    packets: Iterable[bytes]


def _draw(drawing: _Drawing, write: Callable[[bytes], object]) -> int:
    """Writes a group; an empty one is left out."""
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
    verdicts = [verdict for verdict in scene.diagnosis.verdicts if rank in verdict.ranks]
    yield from writer.track(Track("Verdicts", _verdicts(verdicts, scene.span_ns)))
    yield from rank_packets(writer, tables, scene.span_ns[1])


def _labels(scene: Scene, rank: int, host: str | None) -> Iterator[str]:
    """Labels next to a rank's name: that it is a culprit, and how far its clock was moved."""
    for verdict in scene.diagnosis.verdicts:
        if rank in verdict.ranks:
            yield f"culprit: {_short_name(verdict)}"
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
    """The verdicts as slices over the time they cover, or over the whole recording."""
    every = list(verdicts)
    spans = [verdict.time_ns or span_ns for verdict in every]
    begin, end = (np.array([span[at] for span in spans], np.int64) for at in (0, 1))
    names = Strings.of([f"{_short_name(verdict)}: {verdict.summary}" for verdict in every])
    return Slices(begin, end, names, {
        "kind": Strings.of([verdict.kind for verdict in every]),
        "cause": Strings.of([verdict.cause for verdict in every]),
        "ranks": Strings.of([_ranks(verdict) for verdict in every]),
        "advice": Strings.of([verdict.advice for verdict in every]),
        "confidence": Strings.of([f"{verdict.confidence:.2f}" for verdict in every]),
        "lost": Strings.of([_lost(verdict) for verdict in every]),
    })  # fmt: skip


def _short_name(verdict: Verdict) -> str:
    """A short name: the cause, or the kind if the cause is unknown."""
    return verdict.kind if verdict.cause == "unknown" else verdict.cause


def _ranks(verdict: Verdict) -> str:
    return units.ranks(verdict.ranks) if verdict.ranks else "no single rank"


def _lost(verdict: Verdict) -> str | None:
    lost = verdict.lost_fraction
    return None if lost is None else f"{units.percent(lost)} of the step time"


def _hosts(scene: Scene) -> Iterator[_Drawing]:
    """Host-level counters."""
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
    """The rows of each rank by table; tables without rows of the rank are left out."""
    sorted_by_rank = {name: _Sorted.of(table) for name, table in window.tables.items()
                      if table.has("rank")}  # fmt: skip
    for rank in ranks:
        tables = {name: rows.of_rank(rank) for name, rows in sorted_by_rank.items()}
        yield rank, {name: table for name, table in tables.items() if len(table)}


@dataclass(frozen=True)
class _Sorted:
    """A table and the order of its rows by rank; the rows of a rank are copied on request."""

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
