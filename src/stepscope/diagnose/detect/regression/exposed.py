"""Communication that overlapped with computation before, and that computation now waits for.

Fault: gradients that are no longer reduced during the backward pass, but after it.
Paper: ARGUS (2026), table 6, "suboptimal comm-compute overlap": L4, people look at a timeline.
What differs: there are two rules. By passes: the backward passes in which replicas exchange
gradients become longer by the time of that exchange; the other backward passes of the same steps
stay as they are, and so do the transfers. By waits, where collectors record how long ranks block on
an operator, for jobs that exchange in all passes (FSDP): ranks block longer while data moves
between replicas, which itself takes no longer. Until the last member has arrived they wait for a
member, and that is left out.
Cost: one union, and one matching, of the operators between replicas. Cannot see: what never
overlapped, and jobs that exchange in all passes where it is not known how long ranks block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.matching import arrivals, match
from stepscope.diagnose.views.phase_rows import PhaseRows, nullable, phase_rows
from stepscope.trace import BACKWARD
from stepscope.window import NULL, Floats, Ints, Mask, Strings, Table, Union, union

BETWEEN_REPLICAS = ("dp", "edp")
WELL = 0.25
"""Passes without an exchange may have grown by this part of what the others have. Our simulator."""
PART = 0.5
"""An exchange explains a growth between half of it and twice of it. Our simulator."""


@dataclass(frozen=True)
class Exposed:
    """The exchange that computation began to wait for."""

    op: str
    phase: str | None
    """The passes that became longer."""
    grown_ns: float
    """Per rank and step: by how much longer computing waits, or the passes last that it lies in."""
    within_ns: float
    """How long the exchange that computing waits for lasts."""


def newly_exposed(job: Observed, split: int) -> Exposed | None:
    """The exchange that the backward passes wait for since a step, or None."""
    rows = phase_rows(job.window, job.line)
    exchange = None if rows is None else _exchange(job, rows)
    if rows is None or exchange is None:
        return None
    busy, op = exchange
    within = busy.within(rows.begin, rows.end).astype(np.float64)
    own = rows.duration.astype(np.float64) - np.nan_to_num(nullable(rows.table, "wait_ns"))
    passes = rows.names.equals(BACKWARD) & (rows.column >= job.line.warm_up)
    meets = passes & (within > 0)
    late = rows.column >= split
    grown = _grown(own, meets, late)
    lasts = stats.median(within[meets & late])
    if not (grown > 0 and PART * lasts <= grown <= lasts / PART):
        return None
    if abs(_grown(own, passes & ~meets, late)) > WELL * grown:
        return None
    rank_steps = np.unique(rows.rank[late] * (int(rows.column.max()) + 1) + rows.column[late]).size
    each = meets[late].sum() / max(rank_steps, 1)
    return Exposed(op, BACKWARD, grown * each, lasts * each)


def longer_waited_for(job: Observed, split: int) -> Exposed | None:
    """The exchange between replicas that ranks wait longer for since a step, or None."""
    comm = _between_replicas(job)
    if comm is None or not comm.has("blocked_ns"):
        return None
    moving = _moving_ns(comm)
    exposed = np.minimum(moving, np.maximum(comm.ints("blocked_ns"), 0))
    column = job.line.columns(comm.ints("step"))
    before, after = _per_rank(job, column, exposed, split)
    moved_before, moved_after = _per_rank(job, column, moving, split)
    grown = after - before
    if not (grown > 0 and moved_after - moved_before <= WELL * grown):
        return None
    late = np.where((column >= split) & (column < len(job.line.steps)), exposed, 0)
    return Exposed(_mostly(comm.strings("op"), late), None, grown, after)


def _moving_ns(comm: Table) -> Ints:
    """How long data moves after the last member of each row's operator has arrived."""
    matched = match(comm)
    known = matched.key >= 0
    last = np.full(int(matched.key.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, matched.key[known], arrivals(comm)[known])
    moving = np.zeros(len(comm), np.int64)
    moving[known] = np.maximum(comm.ints("end_ns")[known] - last[matched.key[known]], 0)
    return moving


def _per_rank(job: Observed, column: Ints, values: Ints, split: int) -> tuple[float, float]:
    """The medians of the steps before and since one, of sums per rank; NaN where there is none."""
    columns = len(job.line.steps)
    inside = (column >= 0) & (column < columns)
    total = stats.sums(column[inside], values[inside], columns) / max(len(job.line.ranks), 1)
    return stats.median(total[job.line.warm_up : split]), stats.median(total[split:])


def _grown(own: Floats, rows: Mask, late: Mask) -> float:
    """Median after less median before, of some rows; infinite where one of the two is unknown."""
    before, after = own[rows & ~late], own[rows & late]
    if not before.size or not after.size:
        return float("inf")
    return stats.median(after) - stats.median(before)


def _exchange(job: Observed, rows: PhaseRows) -> tuple[Union, str] | None:
    """When each rank exchanges with other replicas, and by which operator mostly."""
    comm = _between_replicas(job)
    if comm is None:
        return None
    rank, start, end = rows.line.rows(comm.ints("rank")), arrivals(comm), comm.ints("end_ns")
    keep = rank >= 0
    if not keep.any():
        return None
    rank, start, end = rank[keep], start[keep], end[keep]
    op = _mostly(comm.strings("op").take(keep), end - start)
    return union(rows.axis.at(rank, start), rows.axis.at(rank, end)), op


def _between_replicas(job: Observed) -> Table | None:
    """Operators between replicas that ended; None where there are none."""
    comm = job.window.table("comm_ops")
    groups = {group.id for group in job.window.job.groups_of_kind(*BETWEEN_REPLICAS)}
    if comm is None or not comm.has("end_ns") or not groups:
        return None
    kept = comm.take(comm.strings("group").equals(*groups) & (comm.ints("end_ns") != NULL))
    return kept if len(kept) else None


def _mostly(ops: Strings, weight: Ints) -> str:
    """The operator that weighs most."""
    return ops.values[int(np.argmax(np.bincount(np.maximum(ops.codes, 0), weights=weight)))]
