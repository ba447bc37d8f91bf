"""Holmes' algorithm 1 as printed: from abnormal operators to the operators and causes at the root.

Paper: Holmes (2025), section 4.3.2, algorithm 1. Symbols: o, n, po -> entries of the graph in one
step, OPERATORS and CAUSES -> `Root`.
Kept as printed: the `else` of line 12 belongs to the `if` of line 10, so that only the first `po`
decides, although the text says that *any* abnormal operator before n is followed and that computing
is the cause only if there is none. A point-to-point operator never leads to the cause COMPUTE (line
27): where nothing on the peer is abnormal, nothing is added.
What the listing leaves open, and what is done here: `for all po of g before n` goes backwards, as
the text backtracks; the members of a group are visited in the order of their ranks; a peer that
was not recorded is no peer (line 22). There is no visited set, so that it may never end; each
operator is analysed once here, which adds the same to the two sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from stepscope.diagnose.graph.comm_graph import CommGraph
from stepscope.window import NULL

Kind = Literal["compute", "network"]


class Abnormal(Protocol):
    """`[entry, column]`: which operators are abnormal; a matrix, or what decides when asked."""

    def __getitem__(self, at: tuple[int, int], /) -> Any: ...


@dataclass(frozen=True, order=True)
class Root:
    """One element of OPERATORS and of CAUSES."""

    entry: int
    """`po` of line 13, `o` of lines 17 and 23."""
    cause: Kind
    found_from: int
    """The abnormal operator `o` that was being analysed; `po` of line 13 is not abnormal itself."""


@dataclass
class Search:
    """Algorithm 1 in one step of a graph."""

    graph: CommGraph
    abnormal: Abnormal
    at: int
    """The step, as a column of the graph."""
    roots: set[Root] = field(default_factory=set)

    def run(self, pivot: int) -> set[Root]:
        """Line 2: starts at each abnormal operator of the pivot, a row of the grid."""
        todo = [one for one in self.graph.log(pivot).tolist() if self._is_abnormal(one)]
        seen = set(todo)
        while todo:
            for found in self._locate(todo.pop()):
                if found not in seen:
                    seen.add(found)
                    todo.append(found)
        return self.roots

    def _locate(self, entry: int) -> Iterator[int]:
        """`locateNeighbor`: adds roots, and gives the operators that it would call itself with."""
        others = [int(one) for one in self.graph.members(entry) if one != entry]
        if self.graph.p2p[entry]:
            yield from self._p2p(entry, others)
            return
        normal = next((one for one in others if not self._is_abnormal(one)), None)
        if normal is None:
            self.roots.add(Root(entry, "network", entry))
            return
        for one in self._before(normal)[:1]:
            if self._is_abnormal(one):
                yield one
            else:
                self.roots.add(Root(one, "compute", entry))

    def _p2p(self, entry: int, others: list[int]) -> Iterator[int]:
        """Lines 22 to 31."""
        if not others or self._is_abnormal(others[0]):
            self.roots.add(Root(entry, "network", entry))
            return
        yield from (one for one in self._before(others[0]) if self._is_abnormal(one))

    def _before(self, entry: int) -> list[int]:
        """The operators of the same log that started earlier, the latest first."""
        log = self.graph.log(int(self.graph.rank[entry]))
        start = self.graph.arrive_ns[log, self.at]
        earlier = (start != NULL) & (start < self.graph.arrive_ns[entry, self.at])
        kept = log[earlier]
        return [int(one) for one in kept[np.argsort(-start[earlier], kind="stable")]]

    def _is_abnormal(self, entry: int) -> bool:
        return bool(self.abnormal[entry, self.at])
