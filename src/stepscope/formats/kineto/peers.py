"""Who sends to whom, where a trace does not record it: gloo's sends and receives without shapes.

NCCL's of an unknown group are here, too, with the places of both ranks in the group.

A program does the same in every step, so the n-th send of a rank in a step goes to the same rank in
all steps, and belongs to the same receive. Gloo copies nothing ahead: a send and its receive end
soon after the later of both began. That they end by t later has a likelihood that falls as
1 / (1 + t / `SOON_NS`), which forgives single delays of any length. Sends and receives are paired
such that all steps together are as likely as possible (the assignment problem: H. W. Kuhn, The
Hungarian method, 1955). Only the ranks count afterwards: the k-th send between two ranks belongs to
the k-th receive.

If any other choice of ranks is nearly as likely, they stay unknown: a ring in which all send at
once shows no direction.

Cost: the cube of the number of sends in a step. Cannot see: steps in which the program does
something else; sends whose partner was not recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.trace import UNKNOWN_PEER
from stepscope.window import NULL, Floats, Ints, Mask, Table, distinct, numbered, occurrence

LEAST_STEPS = 3
"""With fewer a step of another kind is not told from the usual one. Statistics."""
MOST_STEPS = 16
"""Steps that are compared, evenly spread: 12 are enough in eleven jobs. Measured on real data."""
MOST_SENDS = 512
"""In a step. Pairing more would take longer than reading the traces. Our choice."""
SOON_NS = 100_000
"""How soon both end, typically: 125 to 240 us in seven jobs. Measured on real data."""
CLEARLY = 7.0
"""The natural logarithm of a thousand, by which any other choice of ranks must be less likely. Of
1,991 choices by three to twelve steps of eleven jobs 5 were wrong, by less than 3.0; by six steps
99.5 % are as clear as this, by three 87 %. Measured on real data."""
_NEVER = 1e6
"""Costs more than all pairs that may belong together."""


def with_peers(comm: Table) -> Table:
    """Sets the other rank of sends and receives of which it was not recorded, if their places in
    the group or times show it."""
    comm = _by_places(comm)
    p2p = comm.strings("op").equals("Send", "Recv")
    peer = comm.ints("peer")
    unknown = p2p & (peer == UNKNOWN_PEER)
    timed = (comm.ints("step") != NULL) & (comm.ints("end_ns") != NULL)
    program = _program(comm.take(p2p & timed)) if unknown.any() else None
    partner = None if program is None else _partners(program)
    if program is None or partner is None:
        return comm
    of_send = program.receives.rank[partner]
    of_receive = np.empty_like(partner)
    of_receive[partner] = program.sends.rank
    known = program.column >= 0
    found = np.full(known.size, UNKNOWN_PEER)
    for kind, ranks in enumerate((of_send, of_receive)):
        rows = known & (program.kind == kind)
        found[rows] = ranks[program.column[rows]]
    everywhere = np.full(len(comm), UNKNOWN_PEER)
    everywhere[p2p & timed] = found
    return comm.with_column("peer", np.where(unknown, everywhere, peer))


def _by_places(comm: Table) -> Table:
    """Places in an unknown group are ranks if each rank has the place of its number: only the group
    of all ranks is so."""
    place, peer = comm.ints("place"), comm.ints("peer")
    unknown = (place != NULL) & (peer == UNKNOWN_PEER)
    rank = comm.ints("rank")[unknown]
    if distinct(rank).size < 2 or (rank != place[unknown]).any():
        return comm
    return comm.with_column("peer", np.where(unknown, comm.ints("partner"), peer))


@dataclass(frozen=True)
class _Side:
    """All sends of a step, or all receives, one column each."""

    rank: Ints
    peer: Ints
    """The other rank, as far as it was recorded."""
    place: Ints
    """The rank's place in its group; NULL if it was not recorded."""
    partner: Ints
    """The other rank's."""
    start_ns: Floats
    """`[step, column]`."""
    end_ns: Floats


@dataclass(frozen=True)
class _Program:
    """What ranks send and receive in a usual step, in their order."""

    sends: _Side
    receives: _Side
    kind: Ints
    """Of each row: 0 a send, 1 a receive."""
    column: Ints
    """The column of each row; -1 in steps in which ranks do something else."""


def _program(comm: Table) -> _Program | None:
    """The usual step of these sends and receives; None if too few steps are alike, or if sends and
    receives are not equally many."""
    if not len(comm):
        return None
    rank, step = numbered(comm.ints("rank")), numbered(comm.ints("step"))
    kind = comm.strings("op").equals("Recv").astype(np.int64)
    shape = (int(rank.max()) + 1, int(step.max()) + 1, 2)
    lane = np.ravel_multi_index((rank, step, kind), shape)
    counts = np.bincount(lane, minlength=int(np.prod(shape))).reshape(shape)
    usual = np.median(counts, axis=1).astype(np.int64)
    alike = (counts == usual[:, None]).all(axis=(0, 2))
    sent, received = usual.sum(axis=0).tolist()
    if alike.sum() < LEAST_STEPS or sent != received or not 0 < sent <= MOST_SENDS:
        return None
    first = np.cumsum(usual, axis=0) - usual
    place = first[rank, kind] + occurrence(lane, np.arange(len(comm)))
    column = np.where(alike[step], place, -1)
    compared = _spread(np.flatnonzero(alike))
    sends, receives = (
        _side(comm, np.flatnonzero((column >= 0) & (kind == one)), column, step, compared)
        for one in range(2)
    )
    return _Program(sends, receives, kind, column)


def _spread(steps: Ints) -> Ints:
    return steps[np.linspace(0, steps.size - 1, min(steps.size, MOST_STEPS)).astype(np.int64)]


def _side(comm: Table, rows: Ints, column: Ints, step: Ints, compared: Ints) -> _Side:
    columns = int(column[rows].max()) + 1
    rank, peer = np.zeros(columns, np.int64), np.full(columns, UNKNOWN_PEER)
    rank[column[rows]] = comm.ints("rank")[rows]
    np.maximum.at(peer, column[rows], comm.ints("peer")[rows])
    place, partner = np.full(columns, NULL), np.full(columns, NULL)
    np.maximum.at(place, column[rows], comm.ints("place")[rows])
    np.maximum.at(partner, column[rows], comm.ints("partner")[rows])
    rows = rows[np.isin(step[rows], compared)]
    cell = (np.searchsorted(compared, step[rows]), column[rows])
    start, end = np.zeros((compared.size, columns)), np.zeros((compared.size, columns))
    base = comm.ints("start_ns").min()  # a float64 does not hold today's nanoseconds
    start[cell] = comm.ints("start_ns")[rows] - base
    end[cell] = comm.ints("end_ns")[rows] - base
    return _Side(rank, peer, place, partner, start, end)


def _partners(program: _Program) -> Ints | None:
    """The receive of each send; None if other ranks would fit nearly as well."""
    cost = _costs(program)
    partner, reduced = _assigned(cost)
    if (cost[np.arange(len(cost)), partner] >= _NEVER).any():
        return None
    margin = _margin(reduced[:, partner], program.sends.rank, program.receives.rank[partner])
    return partner if margin >= CLEARLY else None


def _costs(program: _Program) -> Floats:
    """How unlikely each send and each receive are one operator: minus the logarithm, summed over
    the steps."""
    sends, receives = program.sends, program.receives
    cost = np.empty((sends.rank.size, receives.rank.size))
    for at in range(sends.rank.size):
        met = np.maximum(sends.start_ns[:, at, None], receives.start_ns)
        apart = np.stack((sends.end_ns[:, at, None] - met, receives.end_ns - met))
        cost[at] = np.log1p(np.abs(apart) / SOON_NS).sum(axis=(0, 1))
    return np.where(_may_pair(sends, receives), cost, _NEVER)


def _may_pair(sends: _Side, receives: _Side) -> Mask:
    """`[send, receive]`: whether they are of different ranks and no recorded rank contradicts."""
    fits: Mask = sends.rank[:, None] != receives.rank
    fits &= (sends.peer[:, None] == UNKNOWN_PEER) | (sends.peer[:, None] == receives.rank)
    fits &= (receives.peer == UNKNOWN_PEER) | (receives.peer == sends.rank[:, None])
    for one, other in ((sends.place, receives.partner), (sends.partner, receives.place)):
        fits &= (one[:, None] == NULL) | (other == NULL) | (one[:, None] == other)
    return fits


def _assigned(cost: Floats) -> tuple[Ints, Floats]:
    """The column of each row so that all together cost least; and costs less what the rows and
    columns are worth in it: 0 for these pairs, and never less.

    The Hungarian method with shortest augmenting paths, one row after the other.
    """
    size = len(cost)
    of_row, of_column = np.zeros(size), np.zeros(size)
    row_of = np.full(size, -1)
    for row in range(size):
        least, before = np.full(size, np.inf), np.full(size, -1)
        done = np.zeros(size, np.bool_)
        at, column = row, -1
        while at >= 0:
            length = cost[at] - of_row[at] - of_column
            shorter = ~done & (length < least)
            least[shorter], before[shorter] = length[shorter], column
            column = int(np.where(done, np.inf, least).argmin())
            step = least[column]
            of_row[row] += step
            of_row[row_of[done]] += step
            of_column[done] -= step
            least[~done] -= step
            done[column] = True
            at = int(row_of[column])
        while column >= 0:
            row_of[column] = row_of[before[column]] if before[column] >= 0 else row
            column = int(before[column])
    partner = np.empty(size, np.int64)
    partner[row_of] = np.arange(size)
    return partner, cost - of_row[:, None] - of_column


def _margin(reduced: Floats, sender: Ints, receiver: Ints) -> float:
    """By how much the best choice of other ranks costs more; infinite if there is no other.

    Any other choice exchanges partners in circles: a pair takes the receive of the next one, and so
    on, until the first one's receive is taken.

    Args:
        reduced: `[pair, pair]`, what it costs more if a pair's send takes the other's receive.
        sender: the rank of each pair's send.
        receiver: the rank of each pair's receive.
    """
    path = reduced.copy()
    for via in range(len(path)):
        np.minimum(path, path[:, via, None] + path[via], out=path)
    other = (sender[:, None] != sender) | (receiver[:, None] != receiver)
    return float(np.where(other, reduced + path.T, np.inf).min(initial=np.inf))
