"""Receives beside which ranks compute: rings that pass keys and values on during attention.

Paper: Liu, Zaharia, Abbeel, *Ring Attention with Blockwise Transformers for Near-Infinite Context*,
2023, section 3: a member computes a block while the next one arrives. Only what a receive lasts
longer than that is waiting. The fastest tenth of all members and steps from one receive to the next
shows how long a block takes; what a rank computes after the receive is no part of it.
Cost: two sorts of such receives. Cannot see: a member that is slow in all rings of a job.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.prepare.matching import POINT_TO_POINT, arrivals
from stepscope.window import NULL, Ints, Mask, Table, Window, numbered, occurrence

FASTEST, NEVER = 0.1, np.int64(2**62)
"""Of all members and steps: one late member delays all others of its ring. Our choice."""


def in_rings(window: Window, comm: Table) -> Mask:
    """Sends and receives of such rings."""
    rings = {group.id for group in window.job.groups_of_kind("cp")}
    return comm.strings("group").equals(*rings) & comm.strings("op").equals(*POINT_TO_POINT)


def waits_from(window: Window, comm: Table) -> Ints:
    """When ranks begin to wait in each operator; never, if it is a send in a ring."""
    since, rings = arrivals(comm), in_rings(window, comm)
    if not rings.any():
        return since
    received = rings & comm.strings("op").equals("Recv")
    since = np.where(rings & ~received, NEVER, since)
    called = since[received]
    rank, step = comm.ints("rank")[received], comm.ints("step")[received]
    lane = numbered(rank, comm.strings("group").codes[received].astype(np.int64))
    order = np.lexsort((called, lane))
    follows = np.diff(lane[order], append=-1) == 0
    after = np.where(follows, np.roll(called[order], -1), NULL)
    place = occurrence(numbered(lane, step), called)[order]
    block = np.where(follows, after - called[order], NEVER)
    usual = np.array([np.quantile(block[place == at], FASTEST, method="lower")
                      for at in range(int(place.max(initial=-1)) + 1)], np.int64)  # fmt: skip
    usual = np.minimum(usual, np.append(usual[:1], usual[:-1]))  # a pass ends with other work
    alone = np.where(follows, np.maximum(after - comm.ints("end_ns")[received][order], 0), 0)
    since[np.flatnonzero(received)[order]] += np.maximum(usual[place] - alone, 0)
    return since
