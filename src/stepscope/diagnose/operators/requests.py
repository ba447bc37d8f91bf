"""Network work requests that were posted and do not complete: whose connection moves nothing.

Paper: VenusTrace (Jiao et al., 2025), sections 3.2.2 and 3.3: the number of requests in flight goes
up and down in a healthy network; where it stays up, the path is at fault. Who only waits for others
in an operator posts nothing, so this tells one member of a collective from all others.
Where we differ: no probe packets, because nobody here sends any; the hang itself, seconds long, is
the timeout (theirs is half a second). Cannot see: connections within a host, and which end of a
single connection is at fault: its sender is named first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from stepscope.window import Ints, Window


@dataclass(frozen=True)
class StuckConnection:
    """A rank by whose adapter nothing moves."""

    rank: int
    peers: tuple[int, ...]
    requests: int
    """In flight."""


def stuck_connection(window: Window, waiting: frozenset[int]) -> StuckConnection | None:
    """The one rank that all requests in flight of some ranks have in common, their sender first.

    None where nothing is in flight, where too much is, or where rows were lost.
    """
    ways, count = _in_flight(window)
    mine = np.isin(ways[:, 0], sorted(waiting))
    ways, count = ways[mine], count[mine]
    if not len(ways):
        return None
    ends = Counter(rank for way in ways.tolist() for rank in set(way))
    shared = [rank for rank, seen in ends.items() if seen == len(ways)]
    senders = [rank for rank in shared if rank in ways[:, 0]]
    if not senders or (len(senders) > 1 and len(ways) > 1):
        return None
    peers = sorted({rank for way in ways.tolist() for rank in way} - {senders[0]})
    return StuckConnection(senders[0], tuple(peers), int(count.sum()))


def _in_flight(window: Window) -> tuple[Ints, Ints]:
    """Sender and receiver of each connection with requests that have not completed, how many."""
    nothing = np.zeros((0, 2), np.int64), np.zeros(0, np.int64)
    table = window.table("transfers")
    if table is None or not table.has("peer", "posted", "completed") or lost_requests(window):
        return nothing
    both = np.stack((table.ints("rank"), table.ints("peer")), axis=1)
    ways, at = np.unique(both, axis=0, return_inverse=True)
    left = np.zeros(len(ways), np.int64)
    np.add.at(left, at.ravel(), table.ints("posted") - table.ints("completed"))
    return ways[left > 0], left[left > 0]


def lost_requests(window: Window) -> bool:
    """Whether rows of work requests are known to be lost."""
    losses = window.table("losses")
    return losses is not None and bool(losses.strings("table").equals("transfers").any())
