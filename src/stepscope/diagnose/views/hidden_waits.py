"""Which phases may contain waiting for other ranks that was not measured.

On a GPU the host's call of an operator returns at once, and the device waits later. If neither the
wait nor the operator's end on the device was recorded, the time of a phase around it is unknown: a
rank that waits there looks as slow as the one it waits for. Operators of tensor, context and expert
parallel groups run within the passes of every microbatch, those of pipelines between them.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.prepare.communication import is_work, loads, receives
from stepscope.diagnose.prepare.durations import APART
from stepscope.diagnose.thresholds import AT_ONCE_NS, HALF
from stepscope.diagnose.views.phase_rows import PhaseRows
from stepscope.diagnose.views.timeline import Timeline
from stepscope.trace import OPTIMIZER, WEIGHT, ProcessGroup
from stepscope.window import NULL, Floats, Ints, Mask, Table, Window, known_steps, numbered

WITHIN_PASSES = ("tp", "cp", "ep", "mp")
"""Groups whose operators are called within a pass of one microbatch."""
BETWEEN_PASSES = ("pp",)
"""Groups whose operators are called between the passes of microbatches."""
BLOCKING_KINDS = (*WITHIN_PASSES, *BETWEEN_PASSES)
"""Groups whose operators come between two pieces of computation, so that the device waits."""
AT_ITS_END = 0.01
"""Of a phase: an operator that ends in the last part is awaited there. One that ends at random does
so in one phase of a hundred. Statistics."""
WAIT_FREE = (OPTIMIZER, "self_attention", "mlp", "moe_experts")
"""Phases that contain no operators, by their definition, beside those that load data."""


def hidden(window: Window, rows: PhaseRows, covered: Floats) -> Mask:
    """Rows that may contain waiting which recorded operators, that cover so much of them, miss."""
    within = all_ends_known(window, rows.line, WITHIN_PASSES)[rows.rank]
    within &= _are_within(window, rows, covered)
    between = all_ends_known(window, rows.line, BETWEEN_PASSES)[rows.rank]
    unknown = ~within | (is_whole(rows) & ~between)
    marked = _marks(rows)
    found = np.where(marked >= 0, (marked > 0) & (unknown | (covered <= 0)),
                     _by_name(window, rows) & unknown)  # fmt: skip
    return np.asarray(found | ((marked != 0) & _end_with_operators(window, rows)))


def _are_within(window: Window, rows: PhaseRows, covered: Floats) -> bool:
    """Whether any recorded operator lies within a pass. Groups that call operators there by
    definition, of which only others were recorded, tell nothing of the passes."""
    passes = rows.names.equals(*rows.passes)
    if not _groups(window, WITHIN_PASSES) or not passes.any():
        return True
    return bool((covered[passes] > 0).any())


def has_hidden_operators(window: Window, comm: Table) -> bool:
    """Whether of some group within or between passes only host calls are known, neither ends nor
    waits."""
    groups = {group.id for group in window.job.groups_of_kind(*BLOCKING_KINDS)}
    seen = np.zeros(len(comm), np.bool_)
    for column in ("end_ns", "blocked_ns"):
        if comm.has(column):
            seen |= comm.ints(column) != NULL
    if seen.all():
        return False
    of_row = comm.strings("group")
    called, waited = (of_row.named(of_row.equals(*groups) & rows) for rows in (~seen, seen))
    return not called <= waited


def gathering(window: Window, rows: PhaseRows) -> Mask:
    """Rows in which ranks may wait for parameters, if neither waits nor ends of gathers are known.

    Measured waiting need not include it. Parameters are gathered within passes (FSDP) if each pass
    of a step has a gather of its own; what is updated once (ZeRO-1) is gathered less often.
    """
    comm, nobody = window.table("comm_ops"), np.zeros(len(rows.rank), np.bool_)
    if comm is None or not comm.has("step"):
        return nobody
    blocking = {group.id for group in window.job.groups_of_kind(*BLOCKING_KINDS)}
    gathers = comm.strings("op").equals("AllGather") & ~comm.strings("group").equals(*blocking)
    gathers &= known_steps(comm.ints("step")) & (comm.ints("rank") >= 0)
    known = (comm.ints(name)[gathers] != NULL for name in ("end_ns", "blocked_ns")
             if comm.has(name))  # fmt: skip
    if not gathers.any() or any(column.any() for column in known):
        return nobody
    passes = rows.names.equals(*rows.passes)
    enough = _per_step(rows.rank[passes], rows.column[passes])
    often = _per_step(comm.ints("rank")[gathers], comm.ints("step")[gathers]) >= enough
    return passes if often and enough else nobody


def _per_step(rank: Ints, step: Ints) -> float:
    """How many rows a rank typically has in a step."""
    return float(np.median(np.bincount(numbered(rank, step)))) if rank.size else 0.0


def _marks(rows: PhaseRows) -> Floats:
    """Whether a row may contain waiting, as its recorder said; -1 if it did not say."""
    if not rows.table.has("waits"):
        return np.full(len(rows.rank), -1.0)
    waits = rows.table.ints("waits")
    return np.where(waits == NULL, -1.0, waits.astype(np.float64))


def _end_with_operators(window: Window, rows: PhaseRows) -> Mask:
    """Rows that end when an operator between replicas does, and all of phases that mostly do:
    backward of DDP and FSDP waits there for the gradients of all ranks."""
    comm, found = window.table("comm_ops"), np.zeros(len(rows.rank), np.bool_)
    if comm is None or not comm.has("end_ns"):
        return found
    blocking = {group.id for group in window.job.groups_of_kind(*BLOCKING_KINDS)}
    rank, end = rows.line.rows(comm.ints("rank")), comm.ints("end_ns")
    kept = (rank >= 0) & (end != NULL) & ~comm.strings("group").equals(*blocking)
    ends = np.sort(rows.axis.at(rank[kept], end[kept]))
    if ends.size:
        last = ends[np.searchsorted(ends, rows.end + AT_ONCE_NS, side="right") - 1]
        found = np.abs(rows.end - last) <= AT_ITS_END * rows.duration
    often = [name for name, share in rows.shares(found).items() if share > HALF]
    return np.asarray(found | rows.names.equals(*often))


def _by_name(window: Window, rows: PhaseRows) -> Mask:
    """Rows that may contain waiting, if their recorder did not say so."""
    free = (*WAIT_FREE, *filter(loads, rows.names.values))
    calling = ~rows.names.equals(*free)
    if _groups(window, WITHIN_PASSES):
        return calling
    if _groups(window, BETWEEN_PASSES):
        return calling & is_whole(rows) & ~rows.names.equals(*passes_alone(rows))
    return np.zeros(len(rows.rank), np.bool_)


def _groups(window: Window, kinds: tuple[str, ...]) -> list[ProcessGroup]:
    """The groups of these kinds in which a recorded rank can wait for another.

    If only one member was recorded, its times stand for the group's, which wait for no other group.
    """
    recorded = frozenset(window.ranks)
    return [group for group in window.job.groups_of_kind(*kinds)
            if len(recorded.intersection(group.ranks)) > 1]  # fmt: skip


def receives_apart(rows: PhaseRows) -> bool:
    """Whether receiving from other stages has phases of its own: who times it apart from the passes
    times these without it, also if he adds up those of a step."""
    return any(map(receives, rows.names.values))


def passes_alone(rows: PhaseRows) -> frozenset[str]:
    """The passes, where receiving has phases of its own. Under other names than the contract's they
    are the two phases with most time that neither communicate nor load."""
    if not receives_apart(rows):
        return frozenset()
    if rows.has_passes:
        return rows.passes | {WEIGHT}
    works = [name for name in rows.names.values if is_work(name)]
    spent = np.bincount(rows.names.codes, rows.duration, len(rows.names.values))
    lasted = {name: spent[rows.names.values.index(name)] for name in works}
    return frozenset(sorted(works, key=lambda name: -lasted[name])[:2])


def is_whole(rows: PhaseRows) -> Mask:
    """Rows that are not the pass of one microbatch, and may contain what comes between passes.

    Not where all passes of a step are the pieces of a longer phase, which contains the rest.
    """
    if rows.table.has(APART):
        return np.asarray(rows.table.ints(APART) <= 0)
    if not rows.table.has("microbatch"):
        return np.ones(len(rows.rank), np.bool_)
    return np.asarray(rows.table.ints("microbatch") < 0)


def all_ends_known(window: Window, line: Timeline, kinds: tuple[str, ...] = BLOCKING_KINDS) -> Mask:
    """Ranks, by row of the timeline, of whose groups of these kinds most operators' ends are known.

    A group without any recorded operator counts as unknown.
    """
    groups = _groups(window, kinds)
    members = [np.asarray(group.ranks, np.int64) for group in groups]
    rows = line.rows(np.concatenate(members)) if members else np.zeros(0, np.int64)
    expected = np.bincount(rows[rows >= 0], minlength=len(line.ranks))
    return np.asarray(_groups_with_ends(window, line, {group.id for group in groups}) >= expected)


def _groups_with_ends(window: Window, line: Timeline, groups: set[str]) -> Ints:
    """In how many of these groups each rank's operators mostly have known ends."""
    comm = window.table("comm_ops")
    if comm is None or not comm.has("end_ns") or not groups:
        return np.zeros(len(line.ranks), np.int64)
    rank = line.rows(comm.ints("rank"))
    kept = (rank >= 0) & comm.strings("group").equals(*groups)
    rank, group = rank[kept], comm.strings("group").codes[kept].astype(np.int64)
    pair = numbered(rank, group)
    share = np.bincount(pair, weights=comm.ints("end_ns")[kept] != NULL) / np.bincount(pair)
    of_pair = np.zeros(share.size, np.int64)
    of_pair[pair] = rank
    return np.bincount(of_pair[share > HALF], minlength=len(line.ranks))
