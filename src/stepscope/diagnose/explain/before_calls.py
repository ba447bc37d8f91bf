"""Whether a rank takes longer before its host calls operators, or after.

Fault: a host that is late once in a step (it loads, pauses, compiles) and then runs ahead of its
device as far as ever, so that its head start (`cpu`) shows nothing.
Paper: none. Between two operators of a rank, what passes before the call of the next one is its
host's time, or that of a device which the host waits for; what passes after it is its device's. If
the peers' time mostly lies after the calls, hosts call at once what the device does next. Then a
slow device takes longer after the calls, and what comes before them is the host.
Cost: one sort of the operators of the rank and its peers. Cannot see: jobs whose hosts call each
operator only when its data is ready.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.intervals import axis_over
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.call_times import recorded_calls
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import HALF
from stepscope.window import NULL, Floats, Ints, Table


def before_calls(job: Observed, suspect: Suspect) -> float | None:
    """The part of the excess before calls of operators; None where that tells nothing."""
    comm = job.window.table("comm_ops")
    if comm is None or not comm.has("start_ns", "end_ns", "step"):
        return None
    peers = job.peers_of(suspect.row, suspect.phase)
    host, device = _parts(job, comm, np.union1d(peers, suspect.row))
    peers = peers[peers != suspect.row]
    usual = [stats.column_median(one[peers])[suspect.columns] for one in (host, device)]
    calls_at_once = stats.median(usual[1]) >= HALF * stats.median(usual[0] + usual[1])
    excess = [max(_mean(own[suspect.row, suspect.columns] - other), 0.0)
              for own, other in zip((host, device), usual, strict=True)]  # fmt: skip
    if not calls_at_once or sum(excess) < HALF * _per_slow_step(suspect):
        return None
    return excess[0] / sum(excess)


def _mean(excess: Floats) -> float:
    """Over the steps in which it is known, without extremes; 0 where it never is."""
    known = excess[np.isfinite(excess)]
    return float(stats.block_means(known[None], known.size)[0, 0]) if known.size else 0.0


def _per_slow_step(suspect: Suspect) -> float:
    if not suspect.spikes:
        return max(suspect.excess_ns, 1.0)
    return max(suspect.whole_ns / len(suspect.spikes), 1.0)


def _parts(job: Observed, comm: Table, rows: Ints) -> tuple[Floats, Floats]:
    """`[rank, step]`: how long some ranks are in no operator, before and after the call of the next
    one; NaN where that is not known."""
    line = job.line
    row, column = job.line.places(comm)
    begin, end = comm.ints("start_ns"), comm.ints("end_ns")
    known = np.isin(row, rows) & (column >= 0) & (begin != NULL) & (end != NULL)
    known &= recorded_calls(comm)
    row, column, begin, end = (one[known] for one in (row, column, begin, end))
    call, unknown = comm.ints("enqueue_ns")[known], np.full(line.shape, np.nan)
    axis = axis_over(len(line.ranks), begin, end, call)
    if axis is None or not row.size:
        return unknown, unknown
    order = np.lexsort((begin, row))
    first, last, called = (axis.at(row, each)[order] for each in (begin, end, call))
    row, cell = row[order], (row * len(line.steps) + column)[order][1:]
    same = row[1:] == row[:-1]
    until = np.maximum.accumulate(last)[:-1]
    gap = np.maximum(first[1:] - until, 0)
    host = np.clip(called[1:] - until, 0, gap)
    count = np.bincount(cell[same], minlength=unknown.size)
    before, whole = (np.where(count > 0, stats.sums(cell[same], each[same], unknown.size), np.nan)
                     .reshape(line.shape) for each in (host, gap))  # fmt: skip
    return before, whole - before
