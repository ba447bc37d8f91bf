"""What-if replay of steps: when would each have finished if ranks had less work of their own?

Each row keeps its own work, less the savings, and its transfer; its waiting is recomputed. Without
savings the recorded times come out. Rows are replayed level by level. The members of an operator
that wait for all of it are one *unit*, which follows whatever any member follows; a row that waits
for nobody, as a send that is buffered, is a unit by itself, and follows its own rank alone. As one
with its receive, the sends of pipelines in both directions would seem to wait for each other.
Steps are replayed one by one, each from its recorded begin. Ranks that load no data may begin their
steps earlier than others; then an operator at the end of a step of one rank is in the next step of
another, and there it is reached earlier by what that rank's step before became shorter.
Cost: one pass over the rows per replay, and a few numpy calls per level.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.graph.step_graph import BEGIN, StepGraph
from stepscope.window import NULL, Ints, ranges, stable_order

CONNECTED = 0.9
"""Part of the rows that must be replayed, and of the collectives and transfers that must have all
members: else a graph does not show who waits for whom. Our choice."""


@dataclass(frozen=True)
class Replay:
    """The rows of a graph, in the order in which they are replayed."""

    graph: StepGraph
    sequence: Ints
    """Rows level by level."""
    levels: Ints
    """The index in `sequence` at which each level begins, and its length at the end."""

    @classmethod
    def of(cls, graph: StepGraph) -> Replay:
        levels = list(_levels(graph))
        sequence = np.concatenate(levels) if levels else np.zeros(0, np.int64)
        return cls(graph, sequence, np.cumsum([0, *(level.size for level in levels)]))

    @property
    def replayed(self) -> float:
        """The part of the rows that is replayed; the others keep their recorded times."""
        return self.sequence.size / self.graph.op.size if self.graph.op.size else 1.0

    def finish_ns(self, saved: Ints, saved_at_end: Ints, faster: Ints | None = None) -> Ints:
        """When each lane would have finished; NULL if it did not run.

        Args:
            saved: the work that each row saves before it arrives.
            saved_at_end: the work that each lane saves after its last gate.
            faster: by how much each row's transfer would be shorter.
        """
        faster = np.zeros_like(saved) if faster is None else faster
        done = self._finished(saved, saved_at_end, np.zeros_like(saved), faster)
        late, early = self._between_steps
        if not late.size:
            return done
        gain = np.where(done == NULL, 0, self.graph.finish_ns - done)
        sooner = np.zeros_like(saved)
        sooner[late] = np.maximum(gain[self.graph.lane[late] - 1], 0)
        again = self._finished(saved, saved_at_end, sooner, faster)
        done[early] = again[early]
        return done

    def finish_linked_ns(self, saved: Ints, saved_at_end: Ints) -> Ints:
        """The same for a graph whose steps follow one another, so that nothing lies between."""
        nothing = np.zeros_like(saved)
        return self._finished(saved, saved_at_end, nothing, nothing)

    @cached_property
    def _between_steps(self) -> tuple[Ints, Ints]:
        """Rows of operators that are in an earlier step of other ranks, and the lanes of these."""
        graph = self.graph
        columns = graph.lanes.columns
        at = graph.lane % max(columns.size, 1)
        first = np.full(graph.bounds.size - 1, columns.size)
        np.minimum.at(first, graph.op, at)
        follows = np.flatnonzero(np.diff(columns, prepend=-2) == 1)
        late = (at == first[graph.op] + 1) & np.isin(at, follows)
        spans = np.zeros(first.size, np.bool_)
        spans[graph.op[late]] = True
        early = spans[graph.op] & (at == first[graph.op])
        return np.flatnonzero(late), np.unique(graph.lane[early])

    def _finished(self, saved: Ints, saved_at_end: Ints, sooner: Ints, faster: Ints) -> Ints:
        """The same, if rows arrive so much sooner, which is nothing that their ranks save."""
        graph = self.graph
        end = self._ends(saved, sooner, faster)
        gate = np.where(graph.last == BEGIN, graph.begin_ns, end[np.maximum(graph.last, 0)]
                        ) if end.size else graph.begin_ns  # fmt: skip
        done = gate + (graph.finish_ns - graph.tail_since_ns) - saved_at_end
        return np.where(graph.finish_ns == NULL, NULL, done)

    def _ends(self, saved: Ints, sooner: Ints, faster: Ints) -> Ints:
        """The new ends of all rows."""
        graph = self.graph
        own = graph.arrive_ns - graph.since_ns - saved - sooner
        begin, waits = graph.begin_ns[graph.lane], graph.waits
        transfer = graph.transfer_ns - faster
        end = graph.end_ns.copy()
        last = np.full(graph.bounds.size - 1, np.iinfo(np.int64).min)
        for level in range(self.levels.size - 1):
            rows = self.sequence[self.levels[level] : self.levels[level + 1]]
            before, op = graph.before[rows], graph.op[rows]
            arrive = np.where(before == BEGIN, begin[rows], end[before]) + own[rows]
            np.maximum.at(last, op, arrive)
            moved = np.where(waits[rows], last[op], arrive) + transfer[rows]
            end[rows] = np.maximum(moved, arrive)
        return end


def _levels(graph: StepGraph) -> Iterator[Ints]:
    """The rows of each level: they follow only rows of lower levels.

    If clocks are misaligned, operators may seem to wait for each other. These are on no level.
    """
    if not graph.op.size:
        return
    units = _Units.of(graph)
    pending = np.bincount(units.follower, minlength=units.bounds.size - 1)
    ready = np.flatnonzero((pending == 0) & (np.diff(units.bounds) > 0))
    while ready.size:
        yield units.order[ranges(units.bounds[ready], np.diff(units.bounds)[ready])]
        after = units.follower[ranges(units.first[ready], np.diff(units.first)[ready])]
        nexts, count = np.unique(after, return_counts=True)
        pending[nexts] -= count
        ready = nexts[pending[nexts] == 0]


@dataclass(frozen=True)
class _Units:
    """Rows that are replayed together, and which unit follows which."""

    order: Ints
    """Rows by unit."""
    bounds: Ints
    """The index in `order` at which each unit begins, and the number of rows at the end."""
    follower: Ints
    """The units that follow a unit, ordered by the latter."""
    first: Ints
    """The index in `follower` at which those of each unit begin, and its length at the end."""

    @classmethod
    def of(cls, graph: StepGraph) -> _Units:
        waits, op = graph.waits, graph.op
        operators, rows = graph.bounds.size - 1, np.arange(op.size)
        unit = np.where(waits, op, operators + rows)
        follows = np.flatnonzero(graph.before != BEGIN)
        waited = np.zeros(operators, np.bool_)
        waited[op[waits]] = True
        # the others of their operator end after they have arrived
        awaited = np.flatnonzero(~waits & waited[op])
        leader = np.concatenate((unit[graph.before[follows]], unit[awaited]))
        follower = np.concatenate((unit[follows], op[awaited]))
        by_leader = stable_order(leader)
        return cls(stable_order(unit), _bounds(unit, operators + op.size),
                   follower[by_leader], _bounds(leader, operators + op.size))  # fmt: skip


def _bounds(number: Ints, count: int) -> Ints:
    """Where the rows of each number begin, when sorted by it."""
    return np.concatenate(([0], np.cumsum(np.bincount(number, minlength=count))))
