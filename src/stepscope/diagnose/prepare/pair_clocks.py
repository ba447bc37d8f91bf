"""Clocks that share no collective, aligned by sends and receives in both directions.

Paper: Mills, Internet time synchronization (1991): of many exchanges the fastest in each direction
bound the offset, and the middle is the estimate. Here a receive never ends before its send has
begun, by any clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.prepare.clocks import Line, constant
from stepscope.diagnose.prepare.matching import POINT_TO_POINT, arrivals, match
from stepscope.window import NULL, Ints, Table

LEAST_PAIRS = 5
"""Fewer pairs in either direction give no usable bound. Statistics."""


@dataclass(frozen=True)
class _Pairs:
    """Sends between clocks that were received."""

    source: Ints
    target: Ints
    """Numbers of clocks."""
    sent_ns: Ints
    """When the send began, by the source's clock."""
    received_ns: Ints


def by_pairs(comm: Table, clock_of: Ints, lines: Mapping[int, Line]) -> dict[int, Line]:
    """Lines of clocks that have none yet, relative to those that have, one after the other."""
    pairs = _pairs(comm, clock_of)
    found: dict[int, Line] = {}
    waiting = [at for at in range(int(clock_of.max(initial=-1)) + 1) if at not in lines]
    while pairs is not None and waiting:
        known = {**lines, **found}
        new = {at: line for at in waiting if (line := _between(pairs, at, known)) is not None}
        if not new:
            break
        found |= new
        waiting = [at for at in waiting if at not in new]
    return found


def _pairs(comm: Table, clock_of: Ints) -> _Pairs | None:
    if not comm.has("peer", "end_ns"):
        return None
    comm = comm.take(comm.strings("op").equals(*POINT_TO_POINT))
    matched = match(comm)
    whole = matched.bounds[:-1][np.diff(matched.bounds) == 2]
    rows = matched.order[whole[:, None] + np.arange(2)]
    received = comm.strings("op").equals("Recv")[rows]
    rows = np.where(received[:, :1], rows[:, ::-1], rows)  # the send first
    end, sent = comm.ints("end_ns")[rows[:, 1]], arrivals(comm)[rows[:, 0]]
    kept = (received.sum(axis=1) == 1) & (end != NULL) & (sent != NULL)
    clock = clock_of[comm.ints("rank")[rows[kept]]]
    return _Pairs(clock[:, 0], clock[:, 1], sent[kept], end[kept])


def _between(pairs: _Pairs, clock: int, lines: Mapping[int, Line]) -> Line | None:
    """The line of a clock by the neighbour with which it has the tightest bounds."""
    best: tuple[float, Line] | None = None
    for other, line in lines.items():
        into = (pairs.source == other) & (pairs.target == clock)
        out = (pairs.source == clock) & (pairs.target == other)
        if min(into.sum(), out.sum()) < LEAST_PAIRS:
            continue
        sent, received = pairs.sent_ns[into], pairs.received_ns[out]
        most = float((pairs.received_ns[into] - (sent - line.at(sent))).min())
        least = float((pairs.sent_ns[out] - (received - line.at(received))).max())
        if least <= most and (best is None or most - least < best[0]):
            best = most - least, constant((least + most) / 2, line.origin_ns)
    return None if best is None else best[1]
