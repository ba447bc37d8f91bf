"""The trace graph: a vertex per pass, stage and microbatch, earliest starts, slack, critical path.

Paper: VenusTrace (Jiao et al., 2025), section 3.3 and appendix A. Symbols: V -> passes of
`graph.passes`, E -> `before`, T_i -> `duration_ns`, EST -> `start_ns`, Slack -> `slack_ns`.
Ours: the edges are a rank's own order as it was observed, and what each pass needs as input. So
1F1B, interleaved, zero-bubble and any other schedule work, and no schedule need be known. A pass
begins some time after what it waits for (`lead_ns`: a transfer, a late host), as it did when it was
observed. Without `lead_ns` it is the paper's graph. Replicas that ran the same order are lanes of
one graph, which is walked once for all of them.
Cost: 16,384 ranks (TP 8, PP 16, DP 128, 64 microbatches): 3 ms a step in C++
(benchmarks/passes.py).
Cannot see: what happens between the last pass and the end of the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.graph.passes import Passes
from stepscope.diagnose.numeric import compiled
from stepscope.window import Ints, Mask, rows_by


@dataclass(frozen=True)
class Topology:
    """Passes in an order in which each follows those that it waits for; `[pass, 2]`, -1: none."""

    order: Ints
    before: Ints


@dataclass(frozen=True)
class Slacks:
    """Earliest start and slack of passes, `[pass, lane]`, and the end of each lane."""

    start_ns: Ints
    slack_ns: Ints
    end_ns: Ints


@dataclass(frozen=True)
class PassGraph:
    """Lanes (a replica in a step) that ran the same passes in the same order.

    Rows are those of `vertices`, numbers of passes in `passes`.
    """

    passes: Passes
    vertices: Ints
    topology: Topology
    replica: Ints
    column: Ints
    """Of the columns that were read."""
    duration_ns: Ints
    """`[vertex, member, lane]`, since all members have begun."""
    lead_ns: Ints
    """`[vertex, lane]`."""

    @property
    def longest_ns(self) -> Ints:
        """`[vertex, lane]`: the duration of the slowest member."""
        return np.asarray(self.duration_ns.max(axis=1))

    def slacks(self, duration_ns: Ints | None = None, lead_ns: Ints | None = None) -> Slacks:
        """Earliest starts and slacks; with other durations or leads, those of a what-if."""
        return slacks(
            self.topology,
            self.duration_ns if duration_ns is None else duration_ns,
            self.lead_ns if lead_ns is None else lead_ns,
        )


def slacks(topology: Topology, duration_ns: Ints, lead_ns: Ints) -> Slacks:
    """Earliest starts and slacks; an empty `lead_ns` means that passes begin at once."""
    if compiled.pass_slacks is None:
        return by_numpy(topology, duration_ns, lead_ns)
    passes, _, lanes = duration_ns.shape
    # of the members only the slowest counts: the times of the others need not be copied
    longest = duration_ns.max(axis=1)
    start, slack, end = compiled.pass_slacks(
        topology.order.astype(np.uint32).tobytes(), topology.before.astype(np.int32).tobytes(),
        longest.tobytes(), lead_ns.tobytes(), 1, lanes,
    )  # fmt: skip
    shape = (passes, lanes)
    return Slacks(np.frombuffer(start, np.int64).reshape(shape),
                  np.frombuffer(slack, np.int64).reshape(shape),
                  np.frombuffer(end, np.int64))  # fmt: skip


def by_numpy(topology: Topology, duration_ns: Ints, lead_ns: Ints) -> Slacks:
    """The same without a compiler."""
    longest = duration_ns.max(axis=1)
    lead = lead_ns if lead_ns.size else np.zeros_like(longest)
    start = np.zeros_like(longest)
    for at in topology.order.tolist():
        for one in topology.before[at].tolist():
            if one >= 0:
                start[at] = np.maximum(start[at], start[one] + longest[one])
        start[at] += lead[at]
    end = (start + longest).max(axis=0)
    latest = np.broadcast_to(end, longest.shape).copy()
    for at in topology.order[::-1].tolist():
        latest[at] -= longest[at]
        for one in topology.before[at].tolist():
            if one >= 0:
                latest[one] = np.minimum(latest[one], latest[at] - lead[at])
    return Slacks(start, latest - start, end)


def pass_graphs(passes: Passes) -> Iterator[PassGraph]:
    """The graphs of all lanes that ran every pass that any lane ran, one per order of passes."""
    ran = passes.ran
    vertices = np.flatnonzero(ran.any(axis=(1, 2, 3)))
    whole: Mask = np.asarray(ran[vertices].all(axis=(0, 1)))  # [replica, column]
    place = passes.place[vertices][:, 0]  # of the first members
    for lanes in _alike(place, whole):
        replica, column = np.nonzero(whole)
        replica, column = replica[lanes], column[lanes]
        topology = topology_of(passes, vertices, place[:, replica[0], column[0]])
        if topology is not None:
            yield _graph(passes, vertices, topology, replica, column)


def _alike(place: Ints, whole: Mask) -> list[Ints]:
    """Lanes in which all passes were in the same order: equal sums of random weights."""
    lanes = place[:, whole]
    weights = np.random.default_rng(0).integers(1, 2**31, lanes.shape[0])
    return [part for part in rows_by(weights @ lanes) if part.size]


def topology_of(passes: Passes, vertices: Ints, place: Ints) -> Topology | None:
    """What each pass waits for, and an order for the walk; None if clocks or numbers contradict
    one another, so that there is none."""
    row = np.full(len(passes), -1)
    row[vertices] = np.arange(vertices.size)
    position = np.array([passes.position(int(one)) for one in vertices])
    before = np.full((vertices.size, 2), -1)
    order = np.lexsort((place, position))
    follows = np.flatnonzero(np.diff(position[order]) == 0)
    before[order[follows + 1], 0] = order[follows]
    inputs = np.array([passes.input_of(int(one)) for one in vertices])
    before[:, 1] = np.where(inputs >= 0, row[inputs], -1)
    walked = walk(before)
    return None if walked is None else Topology(walked, before)


def walk(before: Ints) -> Ints | None:
    """An order in which each row comes after those before it; None if there is none."""
    left = (before >= 0).sum(axis=1)
    after: list[list[int]] = [[] for _ in range(len(before))]
    for at, pair in enumerate(before.tolist()):
        for one in pair:
            if one >= 0:
                after[one].append(at)
    ready = np.flatnonzero(left == 0).tolist()
    waiting = left.tolist()
    for at in ready:  # grows while it is read
        for one in after[at]:
            waiting[one] -= 1
            if waiting[one] == 0:
                ready.append(one)
    return np.array(ready) if len(ready) == len(before) else None


def _graph(passes: Passes, vertices: Ints, topology: Topology,
           replica: Ints, column: Ints) -> PassGraph:  # fmt: skip
    lanes = np.s_[:, :, replica, column]
    end = passes.end_ns[vertices][lanes]
    begin = passes.start_ns[vertices][lanes].max(axis=1)  # one that began before them waited
    lasted = np.maximum(end - begin[:, None], 0)
    done = end.max(axis=1)
    begin_of_step = passes.line.begins_ns[passes.columns[column]]
    since = np.broadcast_to(begin_of_step, done.shape)
    for which in range(topology.before.shape[1]):
        before = topology.before[:, which]
        since = np.where((before >= 0)[:, None], np.maximum(since, done[before]), since)
    lead = np.maximum(begin - since, 0)
    return PassGraph(passes, vertices, topology, replica, column,
                     np.ascontiguousarray(lasted), np.ascontiguousarray(lead))  # fmt: skip
