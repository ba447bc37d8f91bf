"""Random forests as tables of bits: the votes of all trees for all rows at once.

Paper: Lucchese et al., *QuickScorer* (SIGIR 2015). The leaves of a tree are the bits of a word,
from left to right. A node whose threshold is exceeded clears the leaves on its left; of the bits
that remain the lowest is the leaf that the row falls into. So a row needs, for each feature, the
position among all thresholds of that feature, and one row of a table of words.
Trees are stored in preorder, so that they need no pointers: after a node comes its left branch, and
after that its right one.
Cost: a binary search and a row of the table per row and feature; 8 bytes per threshold and tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.window import Floats, Ints

Words = npt.NDArray[np.uint64]

MOST_LEAVES = 64
"""Of a tree: the bits of a word."""
LEAF = -1
"""The feature of a leaf."""
ROWS = 2048
"""Rows at a time: their words for fifty trees fit a cache of 1 MB."""
ALL = np.uint64(2**64 - 1)


@dataclass(frozen=True)
class Tree:
    """A decision tree in preorder. A row goes left if its feature is at most the threshold, both in
    single precision."""

    feature: Sequence[int]
    """Of each node; LEAF for leaves."""
    value: Sequence[float]
    """A node's threshold; a leaf's share of samples that were true."""


@dataclass(frozen=True)
class Forest:
    """The thresholds of all trees, sorted for each feature, and the leaves that are left.

    `words[feature][n, tree]`: the leaves that can be reached if the first n thresholds of the
    feature are exceeded.
    """

    thresholds: tuple[Floats, ...]
    words: tuple[Words, ...]
    leaves: Floats
    """`[tree, leaf]`"""

    @classmethod
    def of(cls, trees: Sequence[Tree], features: int) -> Forest:
        """Raises:
        ValueError: a tree is not complete, too large, or uses a feature that does not exist.
        """
        if not trees:
            raise ValueError("a forest of no trees")
        leaves = np.zeros((len(trees), MOST_LEAVES))
        nodes: list[tuple[int, float, int, np.uint64]] = []
        for at, tree in enumerate(trees):
            try:
                _plant(tree, features, at, nodes, leaves[at])
            except ValueError as error:
                raise ValueError(f"tree {at}: {error}") from error
        tables = [_table([one for one in nodes if one[0] == feature], len(trees))
                  for feature in range(features)]  # fmt: skip
        return cls(tuple(one[0] for one in tables), tuple(one[1] for one in tables), leaves)

    def tuned(self, shift: Floats) -> Forest:
        """The same trees, with the thresholds of each feature moved by this much."""
        moved = (one + by for one, by in zip(self.thresholds, shift.tolist(), strict=True))
        return replace(self, thresholds=tuple(moved))

    def votes(self, values: npt.NDArray[Any]) -> Floats:
        """The average share of `[row, feature]` over all trees; as in scikit-learn, values count
        as single precision."""
        given = np.asarray(values, np.float32)
        found = np.empty(len(given))
        for begin in range(0, len(given), ROWS):
            found[begin : begin + ROWS] = self._votes(given[begin : begin + ROWS])
        return found

    def _votes(self, values: npt.NDArray[np.float32]) -> Floats:
        left = np.full((len(values), len(self.leaves)), ALL)
        read = np.empty_like(left)
        for feature, (thresholds, words) in enumerate(
            zip(self.thresholds, self.words, strict=True)
        ):
            if thresholds.size:
                exceeded = np.searchsorted(thresholds, values[:, feature])
                left &= words.take(exceeded, axis=0, out=read, mode="clip")  # clip: no copy of it
        leaf = _lowest_bit(left)
        return np.asarray(self.leaves[np.arange(len(self.leaves)), leaf].mean(axis=1))


def _lowest_bit(words: Words) -> Ints:
    """The number of the lowest bit that is set: the exponent of that power of two."""
    lowest = words & (~words + np.uint64(1))
    power = lowest.view(np.int64).astype(np.float64)  # the sign of the last one does not matter
    return np.asarray(((power.view(np.int64) >> 52) & 0x7FF) - 1023)


def _plant(
    tree: Tree, features: int, at: int, nodes: list[tuple[int, float, int, np.uint64]],
    leaves: Floats,
) -> None:  # fmt: skip
    """Adds a tree's nodes as (feature, threshold, tree, leaves that remain), and fills in its
    leaves."""
    size, is_leaf = len(tree.feature), [one == LEAF for one in tree.feature]
    if len(tree.value) != size or not np.isfinite(tree.value).all():
        raise ValueError(f"{size} features and {len(tree.value)} values, or values not finite")
    if not all(LEAF <= one < features for one in tree.feature):
        raise ValueError(f"a feature that is not among the {features}")
    if sum(is_leaf) > MOST_LEAVES:
        raise ValueError(f"{sum(is_leaf)} leaves; at most {MOST_LEAVES} are supported")
    ends = _ends(is_leaf)
    before = np.concatenate(([0], np.cumsum(is_leaf))).tolist()
    for node, (feature, value) in enumerate(zip(tree.feature, tree.value, strict=True)):
        if is_leaf[node]:
            leaves[before[node]] = value
            continue
        left = ((1 << before[ends[node + 1]]) - 1) & ~((1 << before[node + 1]) - 1)
        nodes.append((feature, float(np.float32(value)), at, ALL ^ np.uint64(left)))


def _ends(is_leaf: Sequence[bool]) -> list[int]:
    """The node after each node's branch, in preorder."""
    size = len(is_leaf)
    ends = [size + 1] * (size + 2)
    for node in range(size - 1, -1, -1):
        ends[node] = node + 1 if is_leaf[node] else ends[min(ends[node + 1], size + 1)]
    if not size or ends[0] != size:
        raise ValueError("its nodes are not one whole tree in preorder")
    return ends


def _table(
    nodes: Sequence[tuple[int, float, int, np.uint64]], trees: int
) -> tuple[Floats, Words]:  # fmt: skip
    """The thresholds of one feature in order, and the words after each of them."""
    values = np.array([one[1] for one in nodes], np.float64)
    thresholds, place = np.unique(values, return_inverse=True)
    words = np.full((thresholds.size + 1, trees), ALL)
    tree: Ints = np.array([one[2] for one in nodes], np.int64)
    remaining = np.array([one[3] for one in nodes], np.uint64)
    np.bitwise_and.at(words, (place.reshape(-1) + 1, tree), remaining)
    return thresholds, np.bitwise_and.accumulate(words, axis=0)
