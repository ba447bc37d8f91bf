"""Combines the traces of single ranks into one job: ranks, groups, and one window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from stepscope.errors import FormatError
from stepscope.formats.kineto.files import process_of, ranks_by_name
from stepscope.formats.kineto.groups import unique_ids
from stepscope.formats.kineto.hosts import hosts_of
from stepscope.formats.kineto.losses import with_losses
from stepscope.formats.kineto.matching import group_of, lossy, matched
from stepscope.formats.kineto.peers import with_peers
from stepscope.formats.kineto.pipelines import with_pipelines
from stepscope.formats.kineto.rank_trace import RankTrace
from stepscope.trace import Job, ProcessGroup
from stepscope.window import NULL, Ints, Mask, Strings, Table, Window, joined, numbered, occurrence

_SAME = (
    "{one.path} and {other.name} are both of rank {one.rank}, {what}: "
    "two runs, or one file twice; keep one of them"
)
_READING = ("sequence", "thread", "counted_ns", "place", "partner")
"""Columns of `comm_ops` that only the reading needs."""
_NUMBERED = "it has no rank; taken as rank {rank} by the order of names"


def with_ranks(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Sets every trace's rank: from its contents, its name, or the order of processes."""
    silent = [trace for trace in traces if trace.rank is None]
    if not silent:
        return list(traces)
    processes = dict.fromkeys(process_of(trace.name) for trace in traces)
    named = dict(zip(processes, ranks_by_name(list(processes)), strict=True))
    taken = {trace.rank for trace in traces} | set(named.values())
    free = (rank for rank in range(2 * len(traces) + 1) if rank not in taken)
    guessed = {process: next(free) for process in dict.fromkeys(
        process_of(trace.name) for trace in silent) if named[process] is None}  # fmt: skip
    return [_ranked_by(trace, named, guessed) for trace in traces]


def _ranked_by(
    trace: RankTrace, named: Mapping[str, int | None], guessed: Mapping[str, int]
) -> RankTrace:
    if trace.rank is not None:
        return trace
    process = process_of(trace.name)
    if process not in guessed:
        return replace(trace, rank=named[process])
    note = _NUMBERED.format(rank=guessed[process])
    return replace(trace, rank=guessed[process], problems=(*trace.problems, note))


def check_duplicates(traces: Sequence[RankTrace]) -> None:
    """Checks that several files of one rank are different profiling windows.

    Raises:
        FormatError: two files of a rank overlap in time or have the same steps.
    """
    for one, other in pairwise(_in_order(traces)):
        if one.rank != other.rank:
            continue
        if other.span_ns[0] < one.span_ns[1]:
            raise FormatError(_SAME.format(one=one, other=other, what="at the same time"))
        if not one.steps_found_by and np.intersect1d(_steps(one), _steps(other)).size:
            raise FormatError(_SAME.format(one=one, other=other, what="of the same steps"))


def _in_order(traces: Sequence[RankTrace]) -> list[RankTrace]:
    return sorted(traces, key=lambda trace: (trace.rank or 0, trace.span_ns))


def _steps(trace: RankTrace) -> Ints:
    return trace.tables["steps"].ints("step") if "steps" in trace.tables else np.zeros(0, np.int64)


def _counted_on(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Renumbers found steps, which begin at 0 in every file, across the windows of a rank."""
    counted: dict[int | None, int] = {}
    moved = []
    for trace in traces:
        first = counted.get(trace.rank, 0)
        if trace.steps_found_by:
            counted[trace.rank] = first + _steps(trace).size
        moved.append(_later(trace, first) if trace.steps_found_by and first else trace)
    return moved


def _later(trace: RankTrace, steps: int) -> RankTrace:
    tables = {}
    for name, table in trace.tables.items():
        number = table.ints("step") if table.has("step") else None
        known = table if number is None else table.with_column(
            "step", np.where(number == NULL, NULL, number + steps))  # fmt: skip
        tables[name] = known
    return replace(trace, tables=tables)


def window_of(name: str, traces: Sequence[RankTrace]) -> Window:
    """One window out of the traces of all ranks."""
    ordered = _groups_apart(_counted_on(_in_order(traces)))
    tables = {}
    for table in dict.fromkeys(name for trace in ordered for name in trace.tables):
        parts = [_ranked(t.tables[table], t.rank) for t in ordered if table in t.tables]
        tables[table] = joined(_alike(parts))
    job = _job(name, ordered)
    if "comm_ops" in tables:
        lost = _lost(tables["comm_ops"], ordered)
        tables["comm_ops"] = _comm_ops(tables["comm_ops"], ordered, lost)
        tables = with_losses(tables, lost)
        job = with_pipelines(job, tables["comm_ops"])
    return Window(job, tables)


def _ranked(table: Table, rank: int | None) -> Table:
    return Table({"rank": np.full(len(table), rank or 0, np.int64), **table.columns})


def _alike(parts: list[Table]) -> list[Table]:
    """Only the columns that all of them have."""
    names = [name for name in parts[0].columns if all(part.has(name) for part in parts)]
    return [Table({name: part.columns[name] for name in names}) for part in parts]


def _lost(comm: Table, traces: Sequence[RankTrace]) -> Mask:
    """Rows of ranks of which other rows were lost with a part of their file."""
    cut = [trace.rank or 0 for trace in traces if not trace.complete]
    return lossy(comm, np.isin(comm.ints("rank"), cut))


def _comm_ops(comm: Table, traces: Sequence[RankTrace], lost: Mask) -> Table:
    comm = comm.with_column("seq", _places(comm))
    several = len({trace.rank for trace in traces}) > 1
    if several:
        comm = with_peers(comm)
        comm = matched(comm, all(not t.steps_found_by and "steps" in t.tables for t in traces),
                       lost)  # fmt: skip
    return Table({name: c for name, c in comm.columns.items() if name not in _READING})


def _places(comm: Table) -> Ints:
    """The sequence numbers; later windows of a rank continue those of earlier ones."""
    p2p = comm.strings("op").equals("Send", "Recv")
    lane = numbered(comm.ints("rank"), group_of(comm), p2p.astype(np.int64))
    return occurrence(lane, np.arange(len(comm)))


def _groups_apart(traces: list[RankTrace]) -> list[RankTrace]:
    """Gives groups of the same id but other members different ids."""
    made = unique_ids(tuple(group for trace in traces for group in trace.groups))
    apart = []
    for trace in traces:
        ids = {group.id: made[group] for group in trace.groups}
        comm = trace.tables.get("comm_ops")
        tables = dict(trace.tables)
        if comm is not None and any(old != new for old, new in ids.items()):
            group = comm.strings("group")
            values = tuple(ids.get(value, value) for value in group.values)
            tables["comm_ops"] = comm.with_column("group", Strings(group.codes, values))
        groups = tuple(replace(group, id=ids[group.id]) for group in trace.groups)
        apart.append(replace(trace, tables=tables, groups=groups))
    return apart


def _job(name: str, traces: Sequence[RankTrace]) -> Job:
    ranks = sorted({trace.rank or 0 for trace in traces})
    world = max([ranks[-1] + 1, *(trace.world_size or 0 for trace in traces)])
    return Job(
        job_id=name,
        world_size=world,
        hosts=hosts_of(traces, world),
        groups=_groups(traces, world),
        recorded_ranks=None if len(ranks) == world else tuple(ranks),
    )


def _groups(traces: Sequence[RankTrace], world: int) -> tuple[ProcessGroup, ...]:
    """Every group once; one without listed members gets all ranks."""
    found: dict[str, ProcessGroup] = {}
    for group in (group for trace in traces for group in trace.groups):
        known = found.get(group.id)
        if known is None or (group.ranks and not known.ranks):
            found[group.id] = group
    everyone = tuple(range(world))
    return tuple(replace(g, ranks=g.ranks or everyone) for _, g in sorted(found.items()))
