"""Pieces of own work: what lies between the operators on lanes of a graph, and at their end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.graph.covers import phase_covers
from stepscope.diagnose.graph.step_graph import BEGIN, StepGraph
from stepscope.diagnose.numeric import stats
from stepscope.window import NULL, Floats, Ints, Mask, Window, occurrence


@dataclass(frozen=True)
class Pieces:
    """One piece before each row of the chosen lanes, then one at the end of each lane."""

    graph: StepGraph
    rows: Ints
    """Of the graph."""
    lanes: Ints
    lane: Ints
    """Of all pieces."""
    begin_ns: Ints
    end_ns: Ints
    inside: Mapping[str, Floats]
    """By phase, how much of each piece lies in it; empty if phases were not recorded."""
    whole: Mapping[str, Floats]
    """By phase how long it lasts in each lane of the graph."""

    @classmethod
    def of(cls, window: Window, graph: StepGraph, ranks: Ints) -> Pieces:
        """The pieces of some rows of the grid."""
        lanes = _lanes(graph, ranks)
        chosen = np.zeros(len(graph.lanes), np.bool_)
        chosen[lanes] = True
        rows = np.flatnonzero(chosen[graph.lane])
        lane = np.concatenate((graph.lane[rows], lanes))
        begin = np.concatenate((graph.since_ns[rows], graph.tail_since_ns[lanes]))
        end = np.concatenate((graph.arrive_ns[rows], graph.finish_ns[lanes]))
        covers = phase_covers(window, graph.lanes, lanes)
        inside: Mapping[str, Floats] = {}
        whole: dict[str, Floats] = {}
        if covers is not None:
            inside = covers.within(lane, begin, end)
            long = covers.within(lanes, graph.begin_ns[lanes], graph.finish_ns[lanes])
            whole = {name: stats.sums(lanes, spent, len(graph.lanes))
                     for name, spent in long.items()}  # fmt: skip
        return cls(graph, rows, lanes, lane, begin, end, inside, whole)

    @property
    def row(self) -> Ints:
        """Of the grid, for each piece."""
        return self.graph.lanes.row(self.lane)

    @property
    def at(self) -> Ints:
        """The column of the graph, for each piece."""
        return self.graph.lanes.at(self.lane)

    @cached_property
    def unnamed_ns(self) -> Floats:
        """How much of each piece lies in no phase."""
        lasted = np.maximum(self.end_ns - self.begin_ns, 0).astype(np.float64)
        named = sum(self.inside.values(), np.zeros(self.lane.size))
        return np.asarray(np.maximum(lasted - named, 0.0))

    @cached_property
    def place(self) -> Ints:
        """The place of each piece within its lane, from 0 in order of time."""
        return occurrence(self.lane, self.end_ns)

    def until(self, spent: Floats) -> Floats:
        """What each lane has spent by the end of each piece, given what was spent in each: a piece
        begins where that of its gate ended, or its lane, so pieces beside a transfer overlap."""
        done, gate = spent.astype(np.float64), self.gate.copy()
        while (gate != BEGIN).any():
            follows = gate != BEGIN
            done[follows] += done[gate[follows]]
            gate[follows] = gate[gate[follows]]
        return done

    def since_gate(self, until: Floats) -> Floats:
        """Of what a lane has by the end of each piece, what came since its gate."""
        return np.asarray(until - np.where(self.gate == BEGIN, 0.0, until[self.gate]))

    @cached_property
    def gate(self) -> Ints:
        """The piece that each one follows; `BEGIN` for those from the start of a lane."""
        piece = np.full(self.graph.op.size + 1, BEGIN)
        piece[self.rows] = np.arange(self.rows.size)
        return piece[np.concatenate((self.graph.before[self.rows], self.graph.last[self.lanes]))]

    def beyond(self, until: Floats, own: Mask, peers: Ints) -> Floats:
        """How much more some lanes have spent by the end of each of their pieces than their peers
        by the end of theirs, which are rows of the grid; NaN where they have no such piece."""
        others: Mask = np.isin(self.row, peers)
        long = int(self.place[own | others].max(initial=0)) + 1
        grid = np.full((peers.size, self.graph.lanes.columns.size * long), np.nan)
        which = np.searchsorted(np.sort(peers), self.row[others])
        grid[which, self.at[others] * long + self.place[others]] = until[others]
        usual = stats.column_median(grid)[self.at[own] * long + self.place[own]]
        return np.asarray(until[own] - usual)


def _lanes(graph: StepGraph, rows: Ints) -> Ints:
    """The lanes of some rows of the grid, without steps that were not run."""
    steps = graph.lanes.columns.size
    lanes = (np.unique(rows)[:, None] * steps + np.arange(steps)).ravel()
    run = (graph.begin_ns[lanes] != NULL) & (graph.finish_ns[lanes] != NULL)
    return np.asarray(lanes[run])
