"""Communication that computing used to hide, and now waits for.

Fault: gradients that are no longer reduced beside the backward pass, but instead of it.
Paper: ARGUS (2026), table 6, "suboptimal comm-compute overlap": L4, people look at a timeline.
Ours: the backward passes in which replicas exchange gradients become longer by what the exchange in
them takes; the other backward passes of the same steps stay as they are, and so do the transfers.
Cost: one union of the operators between replicas. Cannot see: jobs that exchange in all passes
(FSDP, one microbatch), and what was never hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.diagnose import stats
from stepscope.diagnose.matching import arrivals
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.phase_rows import PhaseRows, nullable, phase_rows
from stepscope.trace import BACKWARD
from stepscope.window import NULL, Floats, Mask, Union, union

BETWEEN_REPLICAS = ("dp", "edp")
WELL = 0.25
"""Passes without an exchange may have grown by this part of what the others have."""
PART = 0.5
"""An exchange explains a growth between half of it and twice of it."""


@dataclass(frozen=True)
class Exposed:
    """What computing began to wait for."""

    op: str
    grown_ns: float
    """Per rank and step: by how much the passes became longer in which it lies."""
    within_ns: float
    """How long the exchange within these passes lasts."""


def newly_exposed(seen: Observed, split: int) -> Exposed | None:
    """The exchange that the backward passes wait for since a step, or None."""
    rows = phase_rows(seen.window, seen.line)
    exchange = None if rows is None else _exchange(seen, rows)
    if rows is None or exchange is None:
        return None
    busy, op = exchange
    within = busy.within(rows.begin, rows.end).astype(np.float64)
    own = rows.duration.astype(np.float64) - np.nan_to_num(nullable(rows.table, "wait_ns"))
    passes = rows.names.equals(BACKWARD) & (rows.column >= seen.line.warm_up)
    meets = passes & (within > 0)
    late = rows.column >= split
    grown = _grown(own, meets, late)
    lasts = stats.median(within[meets & late])
    if not (grown > 0 and PART * lasts <= grown <= lasts / PART):
        return None
    if abs(_grown(own, passes & ~meets, late)) > WELL * grown:
        return None
    each = meets[late].sum() / max(_rank_steps(rows, late), 1)
    return Exposed(op, grown * each, lasts * each)


def _grown(own: Floats, rows: Mask, late: Mask) -> float:
    """The median of some rows after less before; infinite where one of the two is unknown."""
    before, after = own[rows & ~late], own[rows & late]
    if not before.size or not after.size:
        return float("inf")
    return stats.median(after) - stats.median(before)


def _rank_steps(rows: PhaseRows, late: Mask) -> int:
    cell = rows.rank[late] * (int(rows.column.max()) + 1) + rows.column[late]
    return int(np.unique(cell).size)


def _exchange(seen: Observed, rows: PhaseRows) -> tuple[Union, str] | None:
    """When each rank exchanges with other replicas, and by which operator mostly."""
    comm = seen.window.table("comm_ops")
    groups = {group.id for group in seen.window.job.groups_of_kind(*BETWEEN_REPLICAS)}
    if comm is None or not comm.has("end_ns") or not groups:
        return None
    rank, start, end = rows.line.rows(comm.ints("rank")), arrivals(comm), comm.ints("end_ns")
    keep = comm.strings("group").equals(*groups) & (rank >= 0) & (end != NULL)
    if not keep.any():
        return None
    ops = comm.strings("op")
    rank, start, end, code = rank[keep], start[keep], end[keep], ops.codes[keep]
    longest = int(np.argmax(np.bincount(np.maximum(code, 0), weights=end - start)))
    return union(rows.axis.at(rank, start), rows.axis.at(rank, end)), ops.values[longest]
