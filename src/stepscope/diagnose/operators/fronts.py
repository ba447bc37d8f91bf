"""Where the device of each rank stands, from flight recorder dumps.

A host enqueues operators long before its device reaches them. The device stands in the first
operator of the rank, in the order of its own calls, that has not ended; later ones are queued. Only
operators on other communicators may be in flight at the same time, and only what proves that is
believed: the recorder saw them start, or an operator that was called after them has ended, so all
that the device had to do before them is done.
Cost: one sort of the operators.
"""

from __future__ import annotations

import numpy as np

from stepscope.window import Ints, Mask, Table


def device_order(comm: Table) -> Ints:
    """The place of each row in its rank's order of calls; members of a batch share one."""
    order: Ints = comm.ints("batch" if comm.has("batch") else "record")
    return order


def standing(comm: Table, is_open: Mask, ended: Mask) -> Mask:
    """The open rows in which the device of their rank stands.

    Args:
        is_open: rows that are known not to have ended.
        ended: rows that are known to have ended.
    """
    rank, place = comm.ints("rank"), device_order(comm)
    started = comm.strings("seen").equals("started")
    found: Mask = is_open & (place == _first(rank, place, is_open)[rank])
    if started.any():
        found |= is_open & started
        return found
    newest = np.full(int(rank.max(initial=0)) + 1, -1)
    np.maximum.at(newest, rank[ended], place[ended])
    channel = _communicators(comm)
    first = _first(channel, place, is_open)[channel]
    found |= is_open & (place < newest[rank]) & (place == first)
    return found


def _first(owner: Ints, place: Ints, is_open: Mask) -> Ints:
    """The place of the first open row of each owner."""
    first: Ints = np.full(int(owner.max(initial=0)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, owner[is_open], place[is_open])
    return first


def _communicators(comm: Table) -> Ints:
    """A number for the communicator of each row: of the rank and its group, or its peer in that."""
    columns = (comm.ints("rank"), comm.strings("group").codes, comm.ints("peer"))
    _, number = np.unique(np.stack(columns), axis=1, return_inverse=True)
    numbers: Ints = number.reshape(-1).astype(np.int64)
    return numbers
