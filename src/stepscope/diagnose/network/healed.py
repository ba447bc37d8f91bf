"""What steps would take if data moved as fast as usual: a replay of who waited for whom.

Every transfer of a slow place is shortened by its excess, and all waiting is recomputed, so what
other ranks' work, a bubble or another transfer hides costs nothing. Where data moved beside work
that nobody recorded, the replay does not know that this work remains. Ranks that use no slow place
show it: they do as much work as the others, and no step gets shorter by more than the busiest of
them waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.diagnose.graph.replay import CONNECTED, Replay
from stepscope.diagnose.graph.step_graph import StepGraph, spread, step_graph
from stepscope.diagnose.network.edges import Ends, Place, find_places
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.intervals import axis_over
from stepscope.diagnose.observed import Observed
from stepscope.window import NULL, Floats, Ints, union

NEVER = np.iinfo(np.int64).max


def healed_ns(job: Observed, places: Sequence[Place], shorter: Floats) -> float | None:
    """By how much steps in which a place is slow would be shorter, on average; None: unknown.

    Args:
        shorter: `[place, step]`: the part of its transfers by which each would be shorter.
    """
    columns = np.flatnonzero((shorter > 0).any(axis=0))
    replay = job.once(f"replay of {columns.tolist()}", None, lambda: _replay(job, columns))
    if replay is None:
        return None
    graph = replay.graph
    part = _part_of_rows(job, graph, places, shorter)
    if part is None:
        return None
    sooner = np.rint(part * np.maximum(graph.transfer_ns, 0)).astype(np.int64)
    rest, nothing = _rest(graph), np.zeros_like(sooner)
    usual = replay.finish_ns(nothing, rest)
    done = replay.finish_ns(nothing, rest, sooner)
    saved = graph.ended_ns(usual) - graph.ended_ns(done)
    slow = {rank for place in np.flatnonzero((shorter > 0).any(axis=1)).tolist()
            for rank in places[place].members}  # fmt: skip
    return float(np.minimum(saved, _least_waits(job, graph, slow, rest)).mean())


def _replay(job: Observed, columns: Ints) -> Replay | None:
    """The replay of some of these steps; None where too few operators can be replayed."""
    graph = step_graph(job.window, job.line, spread(job.window, job.line, columns))
    replay = None if graph is None else Replay.of(graph)
    return replay if replay is not None and replay.replayed >= CONNECTED else None


def _part_of_rows(
    job: Observed, graph: StepGraph, places: Sequence[Place], shorter: Floats
) -> Floats | None:  # fmt: skip
    """By what part each row's transfer would be shorter; None where members of many operators were
    not recorded, so that it is unknown who waited for whom."""
    begins = graph.bounds[:-1]
    table = graph.comm.take(graph.order)
    known, place = find_places(job.window, table.strings("group").values, Ends.of(table, begins))
    members = np.array([len(one.members) for one in known])[place]
    if (members == np.diff(graph.bounds)).mean() < CONNECTED:
        return None
    at = {(one.group, one.members): number for number, one in enumerate(places)}
    row = np.array([at.get((one.group, one.members), -1) for one in known], np.int64)[place]
    column = graph.lanes.columns[graph.lane % graph.lanes.columns.size]
    at_row = row[graph.op]
    return np.where(at_row >= 0, shorter[at_row, column], 0.0)


def _rest(graph: StepGraph) -> Ints:
    """By how much each lane takes longer after its last operator than the lane of its step that
    takes the least: where all begin the next step together, it may wait for the others there."""
    tail = np.where(graph.finish_ns == NULL, NEVER, graph.finish_ns - graph.tail_since_ns)
    tail = tail.reshape(-1, graph.lanes.columns.size)
    return np.where(tail == NEVER, 0, tail - tail.min(axis=0)).ravel()


def _least_waits(job: Observed, graph: StepGraph, slow: set[int], rest: Ints) -> Floats:
    """Per step, for how long that rank waits that waits the least, of those that use no slow
    place."""
    columns = graph.lanes.columns.size
    since, until = graph.arrive_ns, graph.last_arrival_ns[graph.op]
    late = np.flatnonzero(graph.waits & (until > since))
    axis = axis_over(len(graph.lanes), graph.since_ns, since, until)
    well = ~np.isin(job.line.ranks, [*slow])
    if axis is None or not well.any():
        return np.full(columns, np.inf)
    lane = graph.lane[late]
    waits = union(axis.at(lane, since[late]), axis.at(lane, until[late]))
    own = union(axis.at(graph.lane, graph.since_ns), axis.at(graph.lane, graph.arrive_ns))
    idle = waits.end - waits.start - own.within(waits.start, waits.end)
    waited = rest + stats.sums(waits.start // axis.span_ns, idle, len(graph.lanes))
    ran = well[:, None] & (graph.begin_ns != NULL).reshape(-1, columns)
    return np.asarray(np.where(ran, waited.reshape(-1, columns), np.inf).min(axis=0))
