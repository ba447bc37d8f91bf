"""Operators that a program does not wait for at once, by what ranks reach while they run.

Gradients are exchanged beside the backward pass. A rank that is ahead of the others goes on to its
next operators within passes, one after another, while the exchange waits for the last rank. How far
ranks get shows up to where the program does not wait, and of reductions, which only the optimizer
needs, that it waits after the last operator within passes. This is the same for all ranks: one that
is never ahead waits no earlier than the others.

Cost: two sorts of the operators within passes. Cannot see: programs without such operators.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.views.awaited import MAYBE_AFTER, MOST_DURING
from stepscope.window import Ints, Mask

NEVER = 0
"""No operator is reached during another one."""


def not_awaited_before(
    cell: Ints, place: Ints, first: Ints, last: Ints, proofs: Mask, reductions: Mask
) -> Ints:
    """For each row from when on its rank may wait in it, on the axis.

    Args:
        cell: the rank and step of each row, as one number that grows along the axis.
        place: what each row is in its step, the same number on all ranks.
        first, last: when each row began and ended, on the axis.
        proofs: operators within passes, which begin when the work before them is done.
        reductions: operators that combine gradients.
    """
    reached = np.sort(first[proofs])
    begins = np.searchsorted(np.sort(cell[proofs]), np.arange(int(cell.max()) + 2))
    others = np.flatnonzero(~proofs)
    cells, until = cell[others], last[others] - ((last - first)[others] * MAYBE_AFTER).astype(int)
    during = np.searchsorted(reached, until) - begins[cells]
    during = np.where(during > np.searchsorted(reached, first[others]) - begins[cells], during, 0)
    every, usual = np.diff(begins)[cells], _usual(place[others], during)[place[others]]
    beside = reductions[others] & bool((reductions[others] & (usual > NEVER)).any())
    number = np.where(beside, every, np.minimum(usual, every))
    at = (begins[cells] + number - 1).clip(0, max(reached.size - 1, 0))
    since = first.copy()
    later = number > NEVER
    since[others[later]] = np.clip(reached[at[later]], first[others[later]], last[others[later]])
    return since


def _usual(place: Ints, during: Ints) -> Ints:
    """For each place the operators within passes that all but a few ranks and steps reach at most,
    counted from the begin of the step; `NEVER` where only a few reach any during the operator."""
    order = np.lexsort((during, place))
    counts = np.bincount(place)
    rank_of = np.cumsum(counts) - 1 - (counts * MOST_DURING).astype(np.int64)
    return np.where(counts > 0, during[order][rank_of.clip(0)], NEVER)
