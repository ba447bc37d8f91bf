"""What-if replay of steps: when would each have finished if ranks had less work of their own?

Each row keeps its own work, less the savings, and its transfer; its waiting is recomputed. Without
savings the recorded times come out. Operators are replayed level by level: the level of an operator
is one above the highest level of the operators that its members follow.
Cost: one pass over the rows per replay, and a few numpy calls per level.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.graph.step_graph import BEGIN, StepGraph
from stepscope.window import NULL, Ints, Mask


@dataclass(frozen=True)
class Replay:
    """The rows of a graph, in the order in which they are replayed."""

    graph: StepGraph
    sequence: Ints
    """Rows level by level, operator by operator."""
    levels: Ints
    """The index in `sequence` at which each level begins, and its length at the end."""
    operators: Ints
    """The index in `sequence` at which each operator begins, and its length at the end."""
    before: Ints
    """The index in `sequence` of the row that each row follows, or `BEGIN`."""

    @classmethod
    def of(cls, graph: StepGraph) -> Replay:
        levels = list(_levels(graph))
        operators = np.concatenate(levels) if levels else np.zeros(0, np.int64)
        length = graph.bounds[operators + 1] - graph.bounds[operators]
        sequence = graph.order[_ranges(graph.bounds[operators], length)]
        begins = np.concatenate(([0], np.cumsum(length)))
        counts = np.cumsum([0, *(level.size for level in levels)])
        place = np.full(graph.op.size + 1, BEGIN)
        place[sequence] = np.arange(sequence.size)
        return cls(graph, sequence, begins[counts], begins, place[graph.before[sequence]])

    def finish_ns(self, saved: Ints, saved_at_end: Ints) -> Ints:
        """When each lane would have finished; NULL if it did not run.

        Args:
            saved: the work that each row saves before it arrives.
            saved_at_end: the work that each lane saves after its last gate.
        """
        graph = self.graph
        end = graph.end_ns.copy()
        end[self.sequence] = self._ends(saved)
        gate = np.where(graph.last == BEGIN, graph.begin_ns, end[np.maximum(graph.last, 0)]
                        ) if end.size else graph.begin_ns  # fmt: skip
        done = gate + (graph.finish_ns - graph.tail_since_ns) - saved_at_end
        return np.where(graph.finish_ns == NULL, NULL, done)

    def _ends(self, saved: Ints) -> Ints:
        """The new ends, in the order of `sequence`."""
        graph, rows = self.graph, self.sequence
        own = (graph.arrive_ns - graph.since_ns - saved)[rows]
        begin, waits, transfer = (
            graph.begin_ns[graph.lane[rows]], graph.waits[rows], graph.transfer_ns[rows]
        )  # fmt: skip
        end = np.zeros(rows.size, np.int64)
        first_op = np.searchsorted(self.operators, self.levels)
        for level in range(self.levels.size - 1):
            part = slice(self.levels[level], self.levels[level + 1])
            before = self.before[part]
            since = np.where(before == BEGIN, begin[part], end[before])
            arrive = since + own[part]
            begins = self.operators[first_op[level] : first_op[level + 1] + 1] - part.start
            last = np.repeat(np.maximum.reduceat(arrive, begins[:-1]), np.diff(begins))
            moved = np.where(waits[part], last, arrive) + transfer[part]
            end[part] = np.maximum(moved, arrive)
        return end


def _levels(graph: StepGraph) -> Iterator[Ints]:
    """The operators of each level: their members follow only operators of lower levels.

    If clocks are misaligned, operators may seem to wait for each other. These are on no level and
    keep their recorded times.
    """
    follows = graph.before != BEGIN
    pending = np.bincount(graph.op[follows], minlength=graph.bounds.size - 1)
    followers, first = _followers(graph, follows)
    ready = np.flatnonzero(pending == 0)
    while ready.size:
        yield ready
        rows = graph.order[_ranges(graph.bounds[ready], np.diff(graph.bounds)[ready])]
        after = followers[_ranges(first[rows], first[rows + 1] - first[rows])]
        nexts, count = np.unique(graph.op[after], return_counts=True)
        pending[nexts] -= count
        ready = nexts[pending[nexts] == 0]


def _followers(graph: StepGraph, follows: Mask) -> tuple[Ints, Ints]:
    """Rows ordered by the row that they follow, and the index of each row's first follower."""
    rows = np.flatnonzero(follows)
    order = rows[np.argsort(graph.before[rows], kind="stable")]
    count = np.bincount(graph.before[rows], minlength=graph.op.size)
    return order, np.concatenate(([0], np.cumsum(count)))


def _ranges(first: Ints, length: Ints) -> Ints:
    """Concatenates the integer ranges [first, first + length)."""
    stop = np.cumsum(length)
    within = np.arange(stop[-1] if stop.size else 0)
    return np.asarray(within + np.repeat(first - (stop - length), length))
