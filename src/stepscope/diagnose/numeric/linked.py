"""What is connected by a chain of pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from stepscope.window import Ints, distinct, rows_by


def connected(groups: Iterable[Sequence[int]]) -> list[list[int]]:
    """Numbers that are in one group with each other, or linked by any chain of groups, each list in
    order."""
    known = [group for group in groups if len(group)]
    first = np.array([group[0] for group in known], np.int64)
    other = np.array([*chain.from_iterable(known)], np.int64)
    return linked(np.repeat(first, [*map(len, known)]), other) if known else []


def linked(one: Ints, other: Ints) -> list[list[int]]:
    """Numbers that are linked by any chain of pairs, each list in order.

    Args:
        one, other: the two of each pair, not below zero.
    """
    label = np.arange(int(max(one.max(initial=-1), other.max(initial=-1))) + 1)
    while True:
        low = np.minimum(label[one], label[other])
        before = label.copy()
        np.minimum.at(label, one, low)
        np.minimum.at(label, other, low)
        label = label[label]
        if (label == before).all():
            break
    known = distinct(np.concatenate((one, other)))
    return [known[rows].tolist() for rows in rows_by(label[known])]
