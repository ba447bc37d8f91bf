"""VenusTrace as published: hangs by silence and the first incomplete node, slow critical nodes.

Fault: a rank that hangs; a rank that is slow in a pass on the critical path.
Paper: VenusTrace (Jiao et al., 2025), section 3.3, algorithms 1 and 2, and appendix A, algorithm 3.
Symbols: D_i -> durations of the passes of step i, T_expect -> `expected_ns`, T_g -> sums of a
pipeline's durations, a, m, n -> `SIMILAR`, `SLOWER`, `SILENT`, EST, Slack -> `Slacks`.
Runs by `--method venustrace-published` only. What is kept as printed: `T_expect <- D_i` (line 8),
which follows a slow ramp for good; pipelines are skipped below (1 - m) of the mean (line 19), which
skips hardly any; the slowest rank is the one with the longest AllReduce (line 26), which waits for
the slow one. What cannot be kept is algorithm 3: line 3 overwrites EST, and LST stays
infinite, so that no node is critical and nothing is ever found. The critical path is that of Kelley
and Walker (1959), which the paper cites, over the durations of the passes alone. The network waist
is `slow-transfers` and `hang` (outstanding requests). The default is `hang`; `venustrace` is the
repaired form.
Cost: one walk over the passes of each step. Cannot see: slowness from the start; what is slow by
less than half; several hangs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.finding import Decision, Finding, Slowdown, Stuck
from stepscope.diagnose.graph.pass_graph import PassGraph, pass_graphs, slacks
from stepscope.diagnose.graph.passes import Passes, read_passes, spread
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.operators.liveness import last_progress_ns, now_ns, step_timing
from stepscope.diagnose.operators.places import PASS_WORDS, in_words
from stepscope.diagnose.operators.residual import ready_passes, still_to_do, with_fewest_calls
from stepscope.diagnose.thresholds import SCORE
from stepscope.window import NULL, Floats, Ints, Mask, Table

SIMILAR, SLOWER = 0.05, 0.5
"""a (alpha of section 3.3) and m. Paper."""
SILENT = 2.0
"""n, in times of a step; section 4 has 100 % beyond the expected time, which is the same. Paper."""
FIRST = 1
"""The second iteration sets T_expect. Paper."""


class VenusTracePublished:
    """The first pass that never ends, and critical passes of 1.5 times their time, as published."""

    name = "venustrace-published"
    needs = Needs("phases")

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Finding]:
        yield from first_incomplete(job, self.name)
        yield from slow_nodes(job, self.name)


# ---- algorithm 1 ----


def first_incomplete(job: Observed, name: str) -> Iterator[Stuck]:
    """The rank whose pass is the first incomplete one, if nothing came for n steps."""
    window = job.window
    until, since, step_ns = now_ns(window), last_progress_ns(window), step_timing(window).step_ns
    if until is None or until - since <= SILENT * step_ns:
        return
    left = still_to_do(window)
    ready = ready_passes(left) if left is not None else {}
    if left is None or not ready:
        return
    most = {rank: len(passes) for rank, passes in left.ahead.items()}  # fewest completed batches
    first = max(ready, key=lambda rank: (most[rank], -rank))
    groups = [group.ranks for group in window.job.groups_of_kind("tp") if first in group.ranks]
    ranks = with_fewest_calls(window, left.step, groups[0] if groups else (first,))
    places = tuple(ready[rank] for rank in ranks if rank in ready)
    detail = f"nothing was recorded for {(until - since) / 1e9:.0f} s, and it is the first that"
    detail += f" did not end, {in_words(places)}"
    yield Stuck(
        name, "unknown", detail, ranks, steps=(left.step, left.step), time_ns=(since, until),
        score=SCORE, places=places,
        decisions=(Decision(name, True, (until - since) / step_ns, SILENT, "steps of silence"),),
    )  # fmt: skip


# ---- algorithm 2 ----


def slow_nodes(job: Observed, name: str) -> Iterator[Slowdown]:
    """Per rank, the nodes of the critical path that took 1.5 times what was expected."""
    line = job.line
    passes = read_passes(job.window, line, spread(job.window, np.arange(len(line.steps))))
    if passes is None or passes.columns.size <= FIRST + 1:
        return
    found: dict[int, list[tuple[int, int, float]]] = {}
    for graph in pass_graphs(passes):
        for node in critical_and_slow(graph):
            rank = _slowest_rank(job.window.table("comm_ops"), passes, node)
            found.setdefault(rank, []).append((node.vertex, node.column, node.ratio))
    for rank, nodes in sorted(found.items()):
        yield _of_rank(job, passes, rank, nodes, name)


@dataclass(frozen=True)
class SlowNode:
    """A pass of one replica in one step."""

    vertex: int
    replica: int
    column: int
    ratio: float


def critical_and_slow(graph: PassGraph) -> Iterator[SlowNode]:
    """Lines 17 to 29 for each step: pipelines, their critical path, and its slow nodes.

    A pipeline's members run each pass together, so each is compared for itself.
    """
    lanes = np.lexsort((graph.column, graph.replica))
    for replica in np.unique(graph.replica).tolist():
        own = lanes[graph.replica[lanes] == replica]
        lasted = graph.longest_ns[:, own].astype(np.float64)
        expected = expected_ns(lasted)
        total = _total_ns(graph, own)
        found = slacks(graph.topology, np.ascontiguousarray(graph.duration_ns[:, :, own]),
                       np.zeros(0, np.int64))  # fmt: skip
        hit = (found.slack_ns == 0) & (lasted > (1 + SLOWER) * expected) & total
        for vertex, lane in zip(*map(np.ndarray.tolist, np.nonzero(hit)), strict=True):
            ratio = float(lasted[vertex, lane] / expected[vertex, lane])
            yield SlowNode(
                int(graph.vertices[vertex]), replica, int(graph.column[own[lane]]), ratio
            )


def expected_ns(lasted: Floats) -> Floats:
    """T_expect before each iteration, `[node, iteration]`: lines 3 to 10. Infinite if there is none
    yet."""
    expected = np.full(lasted.shape, np.inf)
    if lasted.shape[1] <= FIRST:
        return expected
    current = lasted[:, FIRST].copy()
    for step in range(FIRST + 1, lasted.shape[1]):
        expected[:, step] = current
        similar = np.abs(lasted[:, step] - current) < SIMILAR * current
        current = np.where(similar, lasted[:, step], current)
    return expected


def _total_ns(graph: PassGraph, own: Ints) -> Mask:
    """Lines 17 to 21: whether each lane's pipeline takes more than (1 - m) of the mean."""
    total = graph.duration_ns.max(axis=1).sum(axis=0).astype(np.float64)
    mean = np.array([total[graph.column == graph.column[lane]].mean() for lane in own.tolist()])
    return np.asarray(total[own] >= (1 - SLOWER) * mean)


def _slowest_rank(comm: Table | None, passes: Passes, node: SlowNode) -> int:
    """Line 26: of the ranks of a node, the one with the longest AllReduce."""
    ranks = passes.ranks_of(node.vertex, node.replica)
    if ranks.size == 1 or comm is None or not comm.has("step", "end_ns", "enqueue_ns"):
        return int(ranks[0])
    at = np.s_[node.vertex, :, node.replica, node.column]
    begin, end = passes.start_ns[at].min(), passes.end_ns[at].max()
    step = passes.line.steps[passes.columns[node.column]]
    column = "start_ns" if comm.has("start_ns") else "enqueue_ns"
    kept = (comm.ints("step") == step) & np.isin(comm.ints("rank"), ranks)
    kept &= comm.strings("op").equals("AllReduce") & (comm.ints("end_ns") != NULL)
    kept &= (comm.ints(column) >= begin) & (comm.ints(column) <= end)
    own = comm.take(kept)
    lasted = own.ints("end_ns") - own.ints(column)
    return int(ranks[np.argmax([lasted[own.ints("rank") == rank].sum() for rank in ranks])])


def _of_rank(
    job: Observed, passes: Passes, rank: int, nodes: Sequence[tuple[int, int, float]], name: str
) -> Slowdown:
    columns = passes.columns[np.unique([column for _, column, _ in nodes])]
    vertex, _, ratio = max(nodes, key=lambda one: one[2])
    words = f"the {PASS_WORDS[passes.kind(vertex)]} of microbatch {passes.microbatch(vertex)}"
    detail = f"{len(nodes)} critical passes took {1 + SLOWER} times what was expected; {words}"
    detail += f" in stage {passes.stage(vertex)} took {ratio:.2f} times"
    span = (int(columns[0]), int(columns[-1]) + 1)
    return Slowdown(
        name, "unknown", detail, (rank,), phase=passes.kind(vertex), steps=job.line.span(*span),
        time_ns=job.line.span_ns(*span), slowdown=ratio, score=SCORE, spikes=int(columns.size),
        of_steps=int(passes.columns.size), columns=frozenset(columns.tolist()),
        decisions=(Decision(name, True, ratio, 1 + SLOWER, detail),),
    )  # fmt: skip
