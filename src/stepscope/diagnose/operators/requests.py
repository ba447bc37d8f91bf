"""Network work requests that were posted and never complete: which connection is stuck.

Paper: VenusTrace (Jiao et al., 2025), sections 3.2.2 and 3.3: in a healthy network the number of
outstanding requests goes up and down; if it stays up, the path is at fault. A rank that only waits
for others in an operator posts no requests, so this identifies one member of a collective.
Where we differ: no probe packets, because we do not send any; the timeout is the hang itself, which
lasts seconds (theirs is half a second). Cannot see: connections within a host, and which end of a
single connection is at fault: its sender is named first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from stepscope.window import Ints, Window


@dataclass(frozen=True)
class StuckConnection:
    """A rank whose network requests do not complete."""

    rank: int
    peers: tuple[int, ...]
    requests: int
    """How many are outstanding."""


def stuck_connection(window: Window, waiting: frozenset[int]) -> StuckConnection | None:
    """The one rank that all outstanding requests of waiting ranks have in common, senders first.

    None if no requests are outstanding, if they have no single rank in common, or if rows were
    lost.
    """
    connections, count = _outstanding(window)
    own = np.isin(connections[:, 0], sorted(waiting))
    connections, count = connections[own], count[own]
    if not len(connections):
        return None
    ends = Counter(rank for connection in connections.tolist() for rank in set(connection))
    shared = [rank for rank, times in ends.items() if times == len(connections)]
    senders = [rank for rank in shared if rank in connections[:, 0]]
    if not senders or (len(senders) > 1 and len(connections) > 1):
        return None
    peers = sorted({rank for pair in connections.tolist() for rank in pair} - {senders[0]})
    return StuckConnection(senders[0], tuple(peers), int(count.sum()))


def _outstanding(window: Window) -> tuple[Ints, Ints]:
    """Sender and receiver of each connection with outstanding requests, and their number."""
    nothing = np.zeros((0, 2), np.int64), np.zeros(0, np.int64)
    table = window.table("transfers")
    if table is None or not table.has("peer", "posted", "completed") or lost_requests(window):
        return nothing
    both = np.stack((table.ints("rank"), table.ints("peer")), axis=1)
    connections, at = np.unique(both, axis=0, return_inverse=True)
    count = np.zeros(len(connections), np.int64)
    np.add.at(count, at.ravel(), table.ints("posted") - table.ints("completed"))
    return connections[count > 0], count[count > 0]


def lost_requests(window: Window) -> bool:
    """Whether rows of work requests are known to be lost."""
    losses = window.table("losses")
    return losses is not None and bool(losses.strings("table").equals("transfers").any())
