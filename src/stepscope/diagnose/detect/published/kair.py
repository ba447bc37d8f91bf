"""KAIR as published: the worker with another rhythm, its outliers at 3 sigma, and the ranks or
edges that they blame.

Fault: a worker whose operators complete at other times than everybody else's.
Paper: KAIR (Yang et al.), section III-B. Symbols: F -> `rhythms`, S_A -> `divergences`, a_i -> the
larger of `start_z` and `work_z`; stage 3, backward blame, is `Outliers.blame`.
Runs by `--method kair-published` only. Scores are evidence and no blame: those who wait for a slow
worker score nearly like it (algorithm notes, section 4), so only what stage 3 ends at is named.
What differs: F is printed as a count without a scale; here it is normalised, and times are counted
from the begin of each step. Operators are those of `comm_ops`: the work before each of them, and
its transfer once the last member has arrived. Those at the same place in equal programs are
compared. If a transfer is long, or starts late although the peer was on time, the *edge* between
the two is to blame.
Cost: all pairs of 10,240 workers take 0.2 s in C++; a pass over the rows of the step graph.
Cannot see: anything in groups of ten or fewer, where z is below (n - 1) / sqrt(n) < 3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.diagnose.finding import Decision, Finding, Slowdown, SlowLink
from stepscope.diagnose.graph.step_graph import BEGIN, StepGraph
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import compiled, stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import SCORE
from stepscope.window import Floats, Ints, numbered, occurrence

SIGMAS = 3.0
"""The empirical rule of stage 2. Paper."""
POINTS = 256
"""Windows of a step in which completed operators are counted; the paper names none. Our
simulator."""
WHOLE = 32767
"""Stands for 1 in the fixed point of the compiled distances."""
MOST_HOPS = 10_000
"""Misaligned clocks could lead to a cycle. Our choice."""

Root = tuple[int, int]
"""A rank that is late by itself twice, or the two ends of an edge."""


class KairPublished:
    """The rank or edge that the outliers of the worker with the strangest rhythm go back to."""

    name = "kair-published"
    needs = Needs("comm_ops.end_ns", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Finding]:
        graph = job.graph
        if graph is None or not graph.op.size:
            return
        scores = divergences(rhythms(graph))
        row = int(np.argmax(scores))
        outliers = Outliers.of(graph)
        found = Counter(root for one in outliers.of_row(row) if (root := outliers.blame(one)))
        if not found:
            return
        (root, times), *_ = found.most_common(1)
        yield self._found(job, row, float(scores[row]), root, times, sum(found.values()))

    def _found(
        self, job: Observed, row: int, score: float, root: Root, times: int, of: int
    ) -> Finding:
        first, last = (int(job.line.ranks[one]) for one in root)
        strange = int(job.line.ranks[row])
        detail = f"rank {strange} has the strangest rhythm (K-S {score:.3f}); {times} of its {of}"
        detail += " outliers go back to "
        detail += "this rank's own work" if first == strange == last else (
            f"the work of rank {first}" if first == last
            else f"the edge from rank {first} to rank {last}")  # fmt: skip
        rule = Decision(self.name, True, score, None, detail)
        values = {"ks": score, "outliers": of, "blamed": times}
        if first == last:
            return Slowdown(self.name, "unknown", detail, (first,), score=SCORE,
                            decisions=(rule,), values=values)  # fmt: skip
        return SlowLink(self.name, "network", detail, (first, last), score=SCORE, decisions=(rule,),
                        where=f"from rank {first} to rank {last}", values=values)  # fmt: skip


def rhythms(graph: StepGraph) -> Floats:
    """`[rank, window]`: the share of the work before operators that has ended by then in a step.

    The operators themselves end everywhere at once.
    """
    row = graph.lanes.row(graph.lane)
    begin = _begins(graph)[graph.lanes.at(graph.lane)]
    long = max(graph.lanes.line.typical_ns, 1.0)
    window = np.clip((graph.arrive_ns - begin) / long * POINTS, 0, POINTS - 1).astype(np.int64)
    ranks = len(graph.lanes.line.ranks)
    counts = stats.sums(row * POINTS + window, np.ones(row.size), ranks * POINTS)
    done = np.cumsum(counts.reshape(ranks, POINTS), axis=1)
    return np.asarray(done / np.maximum(done[:, -1:], 1.0))


def _begins(graph: StepGraph) -> Ints:
    """When the first rank began each step of the graph."""
    return np.asarray(graph.lanes.line.begins_ns[graph.lanes.columns])


def divergences(done: Floats, at_most: int | None = None) -> Floats:
    """S: the mean K-S distance of each worker to all others.

    Args:
        at_most: of more workers, so many that are drawn stand for all others.
    """
    fixed = np.ascontiguousarray(np.rint(done * WHOLE).astype(np.int16))
    if at_most is not None and len(fixed) > at_most:
        some = np.sort(np.random.default_rng(0).choice(len(fixed), at_most, replace=False))
        return _from_some(fixed, np.ascontiguousarray(fixed[some]))
    if compiled.mean_divergences is not None:
        return np.frombuffer(compiled.mean_divergences(fixed.tobytes(), fixed.shape[1]))
    return _from_some(fixed, fixed) * len(fixed) / max(len(fixed) - 1, 1)  # none to itself


def _from_some(fixed: NDArray[np.int16], some: NDArray[np.int16]) -> Floats:
    if compiled.mean_divergences is not None:
        points = fixed.shape[1]
        return np.frombuffer(compiled.mean_divergences(fixed.tobytes(), points, some.tobytes()))
    total = np.zeros(len(fixed))
    for one in some.astype(np.int32):
        total += np.abs(fixed - one).max(axis=1)
    return total / WHOLE / len(some)


@dataclass(frozen=True)
class Outliers:
    """How far the rows of a graph lie from the mean of comparable rows, in standard deviations."""

    graph: StepGraph
    start_z: Floats
    work_z: Floats
    transfer_z: Floats

    @classmethod
    def of(cls, graph: StepGraph) -> Outliers:
        """Comparable rows are those at the same place of equally long programs, in the same
        step."""
        column, length = graph.lanes.at(graph.lane), np.bincount(graph.lane)[graph.lane]
        place = occurrence(graph.lane, graph.arrive_ns)
        like = numbered(column, length, place, graph.comm.strings("op").codes.astype(np.int64))
        start = (graph.since_ns - _begins(graph)[column]).astype(np.float64)
        work = (graph.arrive_ns - graph.since_ns).astype(np.float64)
        return cls(graph, z_scores(like, start), z_scores(like, work),
                   z_scores(like, graph.transfer_ns.astype(np.float64)))  # fmt: skip

    def of_row(self, row: int) -> list[int]:
        """The outliers of one rank, the largest first: `a_i > 3`."""
        score = np.maximum(np.abs(self.start_z), np.abs(self.work_z))
        own = np.flatnonzero((self.graph.lanes.row(self.graph.lane) == row) & (score > SIGMAS))
        return [int(one) for one in own[np.argsort(-score[own])]]

    def blame(self, at: int) -> Root | None:
        """Stage 3: back to what was late for no other reason."""
        graph = self.graph
        for _ in range(MOST_HOPS):
            here = self._row(at)
            if abs(self.work_z[at]) > SIGMAS:
                return here, here
            before = int(graph.before[at])
            if before == BEGIN or abs(self.start_z[at]) <= SIGMAS:
                return None
            peer = int(graph.holder[before])
            on_time = max(abs(self.start_z[peer]), abs(self.work_z[peer])) <= SIGMAS
            if abs(self.transfer_z[before]) > SIGMAS or on_time:
                there = self._row(peer)
                return None if there == here else (there, here)
            at = peer
        return None

    def _row(self, at: int) -> int:
        return int(self.graph.lanes.row(self.graph.lane[at : at + 1])[0])


def z_scores(like: Ints, values: Floats) -> Floats:
    """The z-score of each value among those with the same number; 0 where these do not differ."""
    count = np.bincount(like).astype(np.float64)
    mean = stats.sums(like, values, count.size) / np.maximum(count, 1)
    apart = values - mean[like]
    sigma = np.sqrt(stats.sums(like, apart**2, count.size) / np.maximum(count, 1))
    return np.divide(apart, sigma[like], out=np.zeros_like(apart), where=sigma[like] > 0)
