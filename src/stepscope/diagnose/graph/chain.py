"""What-if replay of steps one after another: what a rank saves in one, it has in the next.

Where all ranks do the same, a step begins for all of them when the one before has ended, and each
step is replayed alone (`replay`). Ranks of another role are elsewhere: those that generate samples
wait for the weights that others send at the end of their own step. A delay goes round, from role to
role and from step to step, and one step alone shows a part of that round. So here a step of a rank
begins when its own step before ended in the replay.
Cost: that of a replay. Cannot see: what went before a step whose predecessor is not in the graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.graph.replay import Replay
from stepscope.diagnose.graph.step_graph import BEGIN, StepGraph
from stepscope.window import NULL, Ints, Mask


@dataclass(frozen=True)
class Chain:
    """The steps of a graph one after another; its rows and lanes are those of the graph."""

    graph: StepGraph
    replay: Replay
    """Of the graph in which rows also follow those of the step before."""
    follows: Mask
    """Lanes that begin where the lane before, of the same rank, ends."""
    first: Mask
    """The first rows of these lanes."""

    @classmethod
    def of(cls, graph: StepGraph) -> Chain:
        follows = _follows(graph)
        last, begin = graph.last.copy(), graph.begin_ns.copy()
        for lanes in _by_column(graph):
            after = lanes[follows[lanes]]
            begin[after] = begin[after - 1]
            idle = after[last[after] == BEGIN]
            last[idle] = last[idle - 1]
        first = (graph.before == BEGIN) & follows[graph.lane]
        before = np.where(first, last[graph.lane - 1], graph.before)
        linked = replace(graph, before=before, last=last, begin_ns=begin)
        return cls(graph, Replay.of(linked), follows, first)

    def saved_ns(self, saved: Ints, saved_at_end: Ints) -> Ints:
        """How much shorter each step of the job gets, by column of the graph."""
        tail = self._tails(saved_at_end)
        saved = saved + np.where(self.first, tail[self.graph.lane - 1], 0)
        before, after = (self.graph.ended_ns(one) for one in (
            self.graph.finish_ns, self.replay.finish_linked_ns(saved, tail)))  # fmt: skip
        sooner = np.where(before == NULL, 0, before - after)
        known = np.flatnonzero(np.diff(self.graph.lanes.columns, prepend=-2) == 1)
        gained = sooner.copy()
        gained[known] -= sooner[known - 1]
        return gained

    def _tails(self, saved_at_end: Ints) -> Ints:
        """What each lane saves after its last gate, which may be in a step before."""
        tail = saved_at_end.copy()
        for lanes in _by_column(self.graph):
            idle = lanes[self.follows[lanes] & (self.graph.last[lanes] == BEGIN)]
            tail[idle] += tail[idle - 1]
        return tail


def _follows(graph: StepGraph) -> Mask:
    """`Chain.follows`."""
    columns = graph.lanes.columns
    next_one = np.tile(np.diff(columns, prepend=-2) == 1, len(graph.lanes.line.ranks))
    ran = (graph.begin_ns != NULL) & (graph.finish_ns != NULL)
    return np.asarray(next_one & ran & np.roll(ran, 1))


def _by_column(graph: StepGraph) -> list[Ints]:
    """The lanes of each column, in order of time."""
    lanes = np.arange(len(graph.lanes)).reshape(-1, graph.lanes.columns.size)
    return [*lanes.T]
