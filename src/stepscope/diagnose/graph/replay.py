"""Steps played again with some of the ranks' own work taken away: when would each have finished?

Every row keeps what was its own, less what is saved, and its transfer; what it waited for follows.
Without savings each time comes out as it was recorded. Operators are played level by level: one
stands on the level after the highest of those that its members follow.
Cost: one pass over the rows per play, and a few numpy calls per level.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.graph.step_graph import BEGIN, StepGraph
from stepscope.window import NULL, Ints, Mask


@dataclass(frozen=True)
class Replay:
    """The rows in the order in which they are played."""

    graph: StepGraph
    sequence: Ints
    """Rows level by level, operator by operator."""
    levels: Ints
    """Where in `sequence` each level begins, and its length at the end."""
    operators: Ints
    """Where in `sequence` each operator begins, and its length at the end."""
    before: Ints
    """The place in `sequence` of the row that each one follows, or `BEGIN`."""

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
        """When every lane would have finished, NULL where it did not run.

        Args:
            saved: what each row needs not do before it arrives.
            saved_at_end: the same of each lane after its last gate.
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
            end[part] = np.where(waits[part], last, arrive) + transfer[part]
        return end


def _levels(graph: StepGraph) -> Iterator[Ints]:
    """Operators whose members all follow operators of levels before.

    Where clocks disagree operators may seem to wait for each other: these are on no level and stay
    as they were recorded.
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
    """Rows by which row they follow, and where each row's followers begin."""
    rows = np.flatnonzero(follows)
    order = rows[np.argsort(graph.before[rows], kind="stable")]
    count = np.bincount(graph.before[rows], minlength=graph.op.size)
    return order, np.concatenate(([0], np.cumsum(count)))


def _ranges(first: Ints, length: Ints) -> Ints:
    """All numbers of ranges, one range after the other."""
    stop = np.cumsum(length)
    within = np.arange(stop[-1] if stop.size else 0)
    return np.asarray(within + np.repeat(first - (stop - length), length))
