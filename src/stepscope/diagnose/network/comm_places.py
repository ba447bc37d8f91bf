"""The places of a communication-operator graph, and in which steps each moved data slowly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.graph.abnormal import middles
from stepscope.diagnose.graph.comm_graph import CommGraph
from stepscope.diagnose.graph.late_search import LateSearch
from stepscope.diagnose.network.edges import Place
from stepscope.diagnose.network.slow_edges import RATIO
from stepscope.trace import ProcessGroup
from stepscope.window import Floats, Ints, Mask, Window, first_rows, numbered


@dataclass(frozen=True)
class CommPlaces:
    """Groups, and pairs of ranks that send to each other."""

    window: Window
    graph: CommGraph

    @cached_property
    def of_entry(self) -> Ints:
        """The number of each entry's place."""
        return numbered(*self._keys)

    @cached_property
    def _keys(self) -> tuple[Ints, Ints, Ints]:
        """Group, and the two ranks of a pair in the direction of its data; -1 for a collective."""
        graph = self.graph
        rank, sends = graph.line.ranks[graph.rank], graph.op.equals("Send")
        source, target = np.where(sends, rank, graph.peer), np.where(sends, graph.peer, rank)
        group = graph.group.codes.astype(np.int64)
        return group, np.where(graph.p2p, source, -1), np.where(graph.p2p, target, -1)

    @cached_property
    def places(self) -> list[Place]:
        known = {one.id: one for one in self.window.groups}
        group, source, target = self._keys
        return [self._place(known, int(group[at]), int(source[at]), int(target[at]))
                for at in first_rows(self.of_entry).tolist()]  # fmt: skip

    def _place(self, known: dict[str, ProcessGroup], group: int, source: int, target: int) -> Place:
        name = self.graph.group.values[group]
        one = known.get(name)
        pair = source >= 0 and target >= 0
        members = (source, target) if pair else one.ranks if one is not None else ()
        return Place(name, one.kind if one is not None else "", members, (), pair)

    def slow(self, search: LateSearch, columns: Ints) -> tuple[Mask, Mask]:
        """`[place, column]`: which took RATIO times their usual time, and which are known."""
        taken, usual = self._taken(columns), self._usual(search)
        known = taken > 0
        return np.asarray(known & (taken > RATIO * usual[:, None])), np.asarray(known)

    def ratio(self, search: LateSearch, place: int) -> float:
        """How many times its usual time a place takes in irregular steps."""
        taken = self._taken(np.flatnonzero(~search.regular))[place]
        usual = max(float(self._usual(search)[place]), 1.0)
        return float(np.median(taken[taken > 0])) / usual if (taken > 0).any() else 1.0

    def _usual(self, search: LateSearch) -> Floats:
        return middles(self._taken(np.flatnonzero(search.regular)))

    def _taken(self, columns: Ints) -> Floats:
        """`[place, column]`: all transfers of a place, over all of its members; 0: unknown."""
        order = np.argsort(self.of_entry, kind="stable")
        begins = np.flatnonzero(np.diff(self.of_entry[order], prepend=-1))
        taken = np.nan_to_num(self.graph.transfer_ns[order][:, columns])
        return np.asarray(np.add.reduceat(taken, begins, axis=0))
