"""Own time of jobs of which only operators are known: the step less the time in operators.

Cost: two sorts of `comm_ops`. Cannot see: what a rank computes while an operator is in progress.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.numeric.intervals import Axis, axis_over
from stepscope.diagnose.prepare.matching import POINT_TO_POINT, arrivals, kinds_and_operators
from stepscope.diagnose.views.awaited import (
    awaited_since,
    not_awaited_before,
    order_known,
    sends_beside_work,
)
from stepscope.diagnose.views.hidden_gaps import Gaps
from stepscope.diagnose.views.hidden_waits import WITHIN_PASSES, all_ends_known
from stepscope.diagnose.views.timeline import Timeline
from stepscope.diagnose.views.unnamed import is_staged, uncovered
from stepscope.window import (
    NULL,
    Floats,
    Ints,
    Mask,
    Table,
    Union,
    Window,
    numbered,
    occurrence,
    union,
)


@dataclass(frozen=True)
class Between:
    """The time between operators, `[rank, step]` in ns; NaN if unknown."""

    own: Floats
    gaps: Gaps | None
    """The gaps that it consists of, where all ranks run the same operators."""


def beside_sends(window: Window, line: Timeline) -> Floats | None:
    """Own time between operators if ranks compute during their sends, `[rank, step]`; None if
    unknown. By operators alone, one that follows a send at once may have waited for it, or for work
    that took as long."""
    comm = window.table("comm_ops")
    if comm is None or not comm.has("end_ns"):
        return None
    found = between_operators(window, comm, line, sends_block=False)
    return None if isinstance(found, str) else found.own


def between_operators(
    window: Window, comm: Table, line: Timeline, sends_block: bool = True
) -> Between | str:
    """The step less the time in which an operator was in progress on the rank; why, if that is not
    known.

    Args:
        sends_block: a rank waits for its sends, unless it reaches other operators meanwhile.
    """
    rank, end = line.rows(comm.ints("rank")), comm.ints("end_ns")
    keep = (rank >= 0) & (end != NULL)
    comm, rank, end = comm.take(keep), rank[keep], end[keep]
    begin = arrivals(comm)
    axis = axis_over(len(line.ranks), begin, end, line.begins_ns)
    if axis is None or not keep.any():
        return "no operator finished"
    groups = (group.id for group in window.job.groups_of_kind(*WITHIN_PASSES))
    within = comm.strings("group").equals(*groups)
    if not order_known(comm, begin, within):
        return "receives were posted ahead, and no host calls tell since when they were awaited"
    sends = comm.strings("op").equals("Send")
    since = awaited_since(comm, rank, begin, end, axis, sends | within)
    first, until = axis.at(rank, begin), axis.at(rank, end)
    places, waited = _places(window, comm, rank, line), np.ones(len(comm), np.bool_)
    if places is not None and within.any():
        reductions = comm.strings("op").equals("AllReduce", "ReduceScatter")
        later = not_awaited_before(*places, first, until, within, reductions)
        since, waited = np.maximum(since, later), later == first
    blocking = ~(sends_beside_work(comm, first, until) if sends_block else sends)
    busy = union(since[blocking], until[blocking])
    own = uncovered(line, axis, busy)
    gaps = None
    if places is not None:
        gaps = _gaps(places, within, waited, (first, until), busy, _begins(window, line, axis))
    own = own if gaps is None else own + gaps.hidden()
    observed = np.isin(np.arange(len(line.ranks)), rank)
    own[~(observed & all_ends_known(window, line))] = np.nan
    return Between(own, gaps)


def _places(window: Window, comm: Table, rank: Ints, line: Timeline) -> tuple[Ints, Ints] | None:
    """The rank and step of each operator, and what it is in its step, the same on all ranks; None
    in pipelines, whose ranks run different programs, and where steps are unknown."""
    if not comm.has("step", "seq") or comm.strings("op").equals(*POINT_TO_POINT).any():
        return None
    column = line.columns(comm.ints("step"))
    if is_staged(window) or (column < 0).any():
        return None
    cell = rank * len(line.steps) + column
    what = kinds_and_operators(window, comm)
    return cell, numbered(what, occurrence(numbered(cell, what), comm.ints("seq")))


def _gaps(
    places: tuple[Ints, Ints], within: Mask, waited: Mask, spans: tuple[Ints, Ints], busy: Union,
    steps: Ints,
) -> Gaps:  # fmt: skip
    """The time before operators, of those that ranks wait for from their begin on."""
    cell, place, begin, end = (column[waited] for column in (*places, *spans))
    return Gaps.of(cell, place, within[waited], begin, end, busy, steps)


def _begins(window: Window, line: Timeline, axis: Axis) -> Ints:
    """`[rank, step]`: where each step begins on the axis; unknown ones, and all where steps were
    not recorded, where their rank's time does."""
    rank = np.arange(len(line.ranks))[:, None]
    known = (line.start_ns != NULL) & (window.table("steps") is not None)
    return axis.at(rank, np.where(known, line.start_ns, axis.origin_ns))
