"""The cost of slow transfers per step: how much longer the slow steps are (blame rule 4).

How long a step would take with slow transfers at their usual level (`lost_ns`): where steps were
faster before, by how much they got longer, as far as the transfers account for it
(`delay.lost_per_step`). Else by the rank whose transfers together exceed their usual time the most,
but no more than that rank has no work of its own. Of a ring that was never faster, and whose equals
pass the same hosts, nothing shows how fast it could be; ends that spread show by what part one hop
makes transfers longer, at least and at most: the middle is assumed, and no less than a half.

Where it is known who waited for whom, a replay shows it (`healed_ns`): every transfer of a slow
place is shortened by its excess, and all waiting is recomputed, so what other ranks' work, a bubble
or another transfer hides costs nothing. Where data moved beside work that nobody recorded, the
replay does not know that this work remains. Ranks that use no slow place show it: they do as much
work as the others, and no step gets shorter by more than the busiest of them waits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.graph.replay import CONNECTED, Replay
from stepscope.diagnose.graph.step_graph import StepGraph, spread, step_graph
from stepscope.diagnose.network.edges import Ends, Place, find_places
from stepscope.diagnose.network.slow_hosts import Suspects
from stepscope.diagnose.network.transfers import Transfers
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.intervals import axis_over
from stepscope.diagnose.observed import Observed, once
from stepscope.diagnose.views.unnamed import UNNAMED
from stepscope.window import NULL, Floats, Ints, Mask, union

EXPLAINS = 0.5
"""Transfers that account for half of a rise explain all of it: operators that are not recorded or
not compared use the same path, and a delay in a pipeline affects every stage. Our simulator."""
LEAST_CALM = 3
"""Steps without slow transfers that are needed to know the normal step time: of fewer, one that is
odd decides. Statistics."""
HALF = 0.5
"""Of a transfer that one hop makes twice as long."""
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Delay:
    """By how much transfers delay a slow step, as far as only they are considered."""

    what_if_ns: float
    """By a replay of the steps, if there is one."""
    longest_ns: float
    """The largest delay of any rank's transfers."""


def lost_per_step(
    delay: Delay, period: Floats, active: Mask, calm: Mask, shared: bool, together_ns: float = 0.0
) -> float:
    """Time per slow step that would be saved: how much longer slow steps are than calm ones.

    Args:
        active: the slow steps.
        calm: steps without slow transfers.
        shared: these steps have other causes as well; then the cost is at most the what-if's.
        together_ns: data was slow between all hosts: delays add up over more than one rank, but to
            no more than this.
    """
    if calm.sum() < LEAST_CALM:
        return delay.what_if_ns
    rise = max(_rise(period, active, calm), 0.0)
    explained = max(delay.what_if_ns, delay.longest_ns, together_ns) >= EXPLAINS * rise
    return rise if explained and not shared else min(delay.what_if_ns, rise)


def _rise(period: Floats, active: Mask, calm: Mask) -> float:
    """How much longer slow steps are than calm ones.

    A delay at the end of a step changes the time of the next step. That change counts as cost of
    the slow step before it.
    """
    usual = stats.median(period[calm])
    after = np.flatnonzero(active[:-1] & ~active[1:]) + 1
    more = stats.median(period[after]) - usual if after.size else 0.0
    return stats.median(period[active]) - usual + more * after.size / int(active.sum())


def longest_delay(places: Sequence[Place], excess_ns: Floats) -> float:
    """The largest delay per step that the transfers of any single rank had.

    Args:
        excess_ns: `[place, step]`.
    """
    per_rank: dict[int, float] = {}
    for place, lost in zip(places, excess_ns.mean(axis=1).tolist(), strict=True):
        for rank in place.members:
            per_rank[rank] = per_rank.get(rank, 0.0) + lost
    return max(per_rank.values(), default=0.0)


def idle_ns(job: Observed, members: Sequence[int], steps: Mask) -> float:
    """The time per step in which the busiest member has no work of its own: the most that a
    transfer for which the members wait can cost. Infinite if no phases were recorded.
    """
    rows = job.line.rows(np.array(members, np.int64))
    known = [own for phase, own in job.own.items() if phase not in UNNAMED]
    if not known or (rows < 0).any():
        return math.inf
    busy = np.nansum([own[np.ix_(rows, steps)] for own in known], axis=0)
    period = job.line.job_period_ns[steps]
    return max(min(stats.median(period - one) for one in busy), 0.0)


def lost_ns(
    job: Observed, moved: Transfers, found: Suspects, now: Mask, usual: Mask | None,
    period: Floats,
) -> float:  # fmt: skip
    """Time lost per step in the columns `now`, compared with the columns `usual` if there are
    any.

    Args:
        period: the step times without what slow ranks cost.
    """
    excess = found.slowness.excess_ns.copy()
    for one in found.ends if usual is None else ():
        # its equals may be as slow: all rings of a job may pass the same host
        least = max(HALF, one.slower[0])
        part = (least + max(least, one.slower[1])) / 2
        excess[one.place] = max(excess[one.place], part * _under_way_ns(moved, one.place, now))
    longest = longest_delay(moved.places, excess[:, None])
    costliest = moved.places[int(excess.argmax())]
    if usual is None:
        return min(longest, idle_ns(job, costliest.members, now))
    return lost_per_step(Delay(longest, longest), period, now, usual, False)


def _under_way_ns(moved: Transfers, place: int, now: Mask) -> float:
    """Time per step in which data of a place moved; some of its operators run beside others."""
    here = np.flatnonzero((moved.place == place) & now[moved.column])
    took = moved.took_ns[here].astype(np.int64)
    end = moved.left_ns[here]
    busy = union(end - took, end)
    return int((busy.end - busy.start).sum()) / int(now.sum())


def healed_ns(job: Observed, places: Sequence[Place], shorter: Floats) -> float | None:
    """By how much steps in which a place is slow would be shorter, on average; None: unknown.

    Args:
        shorter: `[place, step]`: the part of its transfers by which each would be shorter.
    """
    columns = np.flatnonzero((shorter > 0).any(axis=0))
    replay = _replay(job, tuple(columns.tolist()))
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


@once
def _replay(job: Observed, columns: tuple[int, ...]) -> Replay | None:
    """The replay of some of these steps; None where too few operators can be replayed."""
    graph = step_graph(
        job.window, job.line, spread(job.window, job.line, np.array(columns, np.int64))
    )
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
