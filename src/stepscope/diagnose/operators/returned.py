"""Which member broke an all-to-all that does not add up, from flight recorder dumps.

A layer of experts dispatches tokens in one AllToAll and brings their results back in the next. So
each rank gives in the second what it took in the first, and takes what it gave, however uneven. The
ranks whose pair is not reversed, while those of all others are, called something else.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.operators.progress import Lane, Recording
from stepscope.window import Mask

AGREED = 2
"""Pairs of each member that were reversed before. As `equals.AGREED`."""


def unreturned(recording: Recording, group: str, seq: int) -> frozenset[int]:
    """The minority of a group whose pair of calls is not reversed as those of all were before."""
    lanes = recording.lanes[group].values()
    for begin in (seq, seq - 1):
        kept = {lane.rank: _reversed(recording, lane, begin) for lane in lanes}
        if any(pairs.size <= AGREED or not pairs[:-1].all() for pairs in kept.values()):
            continue
        odd = frozenset(rank for rank, pairs in kept.items() if not pairs[-1])
        if 2 * len(odd) < len(kept):
            return odd
    return frozenset()


def _reversed(recording: Recording, lane: Lane, begin: int) -> Mask:
    """Whether each pair of calls up to the one at `begin` is reversed; empty if it lacks a call."""
    first = np.arange(begin, int(lane.seqs[0]) - 1, -2)[::-1]
    at = np.searchsorted(lane.seqs, first)
    if not first.size or at[-1] + 1 >= lane.seqs.size or (np.diff(lane.seqs) != 1).any():
        return np.zeros(0, np.bool_)
    one, other = lane.rows[at], lane.rows[at + 1]
    given, taken = recording.comm.ints("given"), recording.comm.ints("taken")
    exchanges = recording.comm.strings("op").equals("AllToAll")
    found: Mask = (exchanges[one] & exchanges[other]
                   & (given[one] == taken[other]) & (taken[one] == given[other]))  # fmt: skip
    return found
