"""Since when a rank has waited in a receive from its neighbour in the pipeline.

Receives are posted ahead: on the device's communication stream they are in progress while the rank
still computes what comes before them. A rank waits for its input only when it has finished what its
program does before the receive. What it sends shows that: a send starts when its data was computed.
So does every collective within the passes.

The program's order is the order of host calls. If these were not recorded, operators are taken in
the order in which they ended. That is true where collectives within the passes show how far a rank
has computed. Without these nobody knows (`order_known`): a receive that ended during computation
would count as waiting, and the rank whose input came late as the slowest.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.numeric.intervals import Axis
from stepscope.window import Ints, Mask, Table


def order_known(comm: Table, begin: Ints, within: Mask) -> bool:
    """Whether it can be told since when receives were awaited.

    Args:
        begin: arrivals of all rows in ns.
        within: operators within passes.
    """
    if not comm.strings("op").equals("Recv").any():
        return True
    return bool(within.any() or (comm.ints("enqueue_ns") < begin).any())


def awaited_since(
    comm: Table, rank: Ints, begin: Ints, end: Ints, axis: Axis, proofs: Mask
) -> Ints:
    """For each row when the rank began to wait in it, on the axis.

    Args:
        comm: operators that ended.
        rank: rows of their ranks on the axis.
        begin: their arrivals in ns.
        end: their ends in ns.
        axis: places times of all ranks.
        proofs: operators that start when the computation before them has finished.
    """
    first, last = axis.at(rank, begin), axis.at(rank, end)
    receives = comm.strings("op").equals("Recv")
    if not receives.any():
        return first
    called = comm.ints("enqueue_ns")
    order = np.lexsort((called if bool((called < begin).any()) else end, rank))
    reached = np.where(proofs & ~receives, first, rank * axis.span_ns)
    computed = np.empty_like(first)
    computed[order] = np.maximum.accumulate(reached[order])
    return np.where(receives, np.clip(computed, first, last), first)
