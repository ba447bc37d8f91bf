"""Sends and receives of which some rows were lost, matched within each step.

The k-th send of a direction meets the k-th receive. One row that was lost shifts all later ones:
then data seems to be on its way for as long as a microbatch, and links seem slow. Where a rank's
numbers of its operators have gaps, pairs are sought within each step, and in no step in which one
of both ranks has a gap.
Cost: counting; two sorts of `comm_ops` if it is small or rows were lost. Cannot see: rows that were
lost at the begin or end of a step, if the other rank lost as many there; numbers that do not count.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.diagnose.prepare.matching import POINT_TO_POINT
from stepscope.trace import UNKNOWN_PEER
from stepscope.window import NULL, Ints, Mask, Table, Window, numbered, occurrence, ordered

MOST_ROWS = 200_000
"""In larger tables gaps are sought only if sends and receives differ in number, as they do unless
few rows were lost; it would take a tenth of the time of a diagnosis. Our choice."""


def with_pairs(window: Window) -> Window:
    """The window whose operators have a `match`, if rows of sends or receives were lost."""
    comm = window.table("comm_ops")
    if comm is None or not comm.has("step", "peer", "seq") or comm.has("match") or _all_meet(comm):
        return window
    broken = _with_gaps(comm)
    if not broken.any():
        return window
    found = comm.with_column("match", _matches(comm, broken))
    return replace(window, tables={**window.tables, "comm_ops": found})


def _all_meet(comm: Table) -> bool:
    op = comm.strings("op")
    sent, received = (np.count_nonzero(op.equals(name)) for name in POINT_TO_POINT)
    return sent == received and (len(comm) > MOST_ROWS or not sent)


def _with_gaps(comm: Table) -> Mask:
    """The rows of each step of a rank in a group in which numbers are missing."""
    group = comm.strings("group").codes.astype(np.int64)
    rank, seq, step = (comm.ints(name) for name in ("rank", "seq", "step"))
    stream, cell = numbered(rank, group), numbered(rank, group, step)
    order = ordered(stream, seq)
    within = (np.diff(cell[order]) == 0) & (seq[order][:-1] != NULL)
    rise = np.diff(seq[order])
    counts = rise[within].size and np.median(rise[within]) == 1
    gap = within & (rise > 1) & bool(counts)
    return np.bincount(cell[order][1:][gap], minlength=int(cell.max()) + 1)[cell] > 0


def _matches(comm: Table, broken: Mask) -> Ints:
    """A number for each collective, and for each pair within a step; NULL: it may be any other."""
    seq, op = comm.ints("seq"), comm.strings("op")
    matches = np.where(op.equals(*POINT_TO_POINT), NULL, seq)
    known = (op.equals(*POINT_TO_POINT) & (comm.strings("group").codes >= 0) & (seq != NULL)
             & (comm.ints("step") != NULL) & (comm.ints("peer") > UNKNOWN_PEER))  # fmt: skip
    one, received = comm.take(known), op.equals("Recv")[known]
    rank, peer = one.ints("rank"), one.ints("peer")
    source, target = np.where(received, peer, rank), np.where(received, rank, peer)
    group = one.strings("group").codes.astype(np.int64)
    meeting = numbered(group, source, target, one.ints("step"))
    sent, taken, unsure = (
        np.bincount(meeting[some], minlength=int(meeting.max(initial=-1)) + 1)
        for some in (~received, received, broken[known])
    )
    nth = occurrence(2 * meeting + received, one.ints("seq"))
    before = np.cumsum(sent) - sent + int(seq.max()) + 1
    sure = (sent == taken) & (unsure == 0)
    matches[known] = np.where(sure[meeting], before[meeting] + nth, NULL)
    return matches
