"""Sends and receives of which some rows were lost, matched within each step.

The k-th send of a direction meets the k-th receive. One row that was lost shifts all later ones,
and so does a rank that was recorded from a later step on: then data seems to be on its way for as
long as a microbatch or a step, and links seem slow. Where a rank's numbers of its operators have
gaps within a step, or a direction has unequally many sends and receives in some step but the last
ones, its pairs are sought within each step; in no step in which one of both ranks has a gap.
Cost: counting; four sorts of the sends and receives if there are few of them or rows were lost.
Cannot see: rows that were lost at the begin or end of a step, if the other rank lost as many there,
or in the last step; steps that begin at different places of the program on both ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.prepare.matching import POINT_TO_POINT, directions
from stepscope.diagnose.thresholds import HALF
from stepscope.window import NULL, Ints, Mask, Rows, Table, Window, numbered, occurrence, ordered

MOST_ROWS = 200_000
"""In larger tables lost rows are sought only if sends and receives differ in number, as they do
unless few were lost; it would take a tenth of the time of a diagnosis. Our choice."""


def with_pairs(window: Window) -> Window:
    """The window whose operators have a `match`, if rows of sends or receives were lost."""
    comm = window.table("comm_ops")
    if comm is None or not comm.has("step", "peer", "seq") or comm.has("match") or _all_meet(comm):
        return window
    found = _Messages.of(comm)
    if not found.by_step.any():
        return window
    known = comm.with_column("match", found.matches(comm))
    return replace(window, tables={**window.tables, "comm_ops": known})


def _all_meet(comm: Table) -> bool:
    op = comm.strings("op")
    sent, received = (np.count_nonzero(op.equals(name)) for name in POINT_TO_POINT)
    return sent == received and (len(comm) > MOST_ROWS or not sent)


@dataclass(frozen=True)
class _Messages:
    """Sends and receives whose peers are known."""

    rows: Rows
    """Which rows of `comm_ops` they are; all other columns are of these alone."""
    received: Mask
    seq: Ints
    direction: Ints
    """A number for each group, source and target."""
    meeting: Ints
    """A number for each step of each direction."""
    sure: Mask
    """By meeting, whether the k-th send is that of the k-th receive."""
    by_step: Mask
    """Messages of directions of which rows were lost."""

    @classmethod
    def of(cls, comm: Table) -> _Messages:
        rows = np.flatnonzero((comm.ints("step") != NULL) & (comm.ints("seq") != NULL))
        known, received, direction = directions(comm.take(rows))
        rows = rows[known]
        step, seq = (comm.ints(name)[rows] for name in ("step", "seq"))
        meeting = numbered(direction, step)
        count = int(meeting.max(initial=-1)) + 1
        gap = _with_gaps(comm)[rows]
        sent, taken, gaps = (np.bincount(meeting[one], minlength=count)
                             for one in (~received, received, gap))  # fmt: skip
        of, at = np.zeros((2, count), np.int64)
        of[meeting], at[meeting] = direction, step
        even = sent == taken
        whole_until = np.full(int(direction.max(initial=-1)) + 1, NULL)
        np.maximum.at(whole_until, of[even], at[even])
        sure = (even | (at > whole_until[of])) & (gaps == 0)
        lost = np.bincount(of, ~sure) > 0
        lost &= (np.bincount(of, gaps) > 0) | (np.bincount(of, even) >= HALF * np.bincount(of))
        return cls(rows, received, seq, direction, meeting, sure, lost[direction])

    def matches(self, comm: Table) -> Ints:
        """A number for each collective, and for each pair; NULL: it may be any other."""
        seq = comm.ints("seq")
        matches = np.where(comm.strings("op").equals(*POINT_TO_POINT), NULL, seq)
        beyond = int(seq.max()) + 1
        matches[self.rows] = np.where(
            self.by_step,
            np.where(self.sure[self.meeting], beyond + self._numbers(self.meeting), NULL),
            beyond + self.seq.size + self._numbers(self.direction),
        )
        return matches

    def _numbers(self, of: Ints) -> Ints:
        """The same number for the k-th send and the k-th receive of each direction or meeting."""
        nth, count = occurrence(2 * of + self.received, self.seq), np.bincount(of)
        return np.asarray((np.cumsum(count) - count)[of] + nth)


def _with_gaps(comm: Table) -> Mask:
    """The rows of each step of a rank in a group in which numbers are missing. In its last step
    these may be receives that were posted and never met a send."""
    group = comm.strings("group").codes.astype(np.int64)
    rank, seq, step = (comm.ints(name) for name in ("rank", "seq", "step"))
    stream, cell = numbered(rank, group), numbered(rank, group, step)
    last = np.full(int(stream.max()) + 1, NULL)
    np.maximum.at(last, stream, step)
    order = ordered(stream, seq)
    within = (np.diff(cell[order]) == 0) & (seq[order][:-1] != NULL)
    rise = np.diff(seq[order])
    counts = rise[within].size and np.median(rise[within]) == 1
    gap = within & (rise > 1) & (step < last[stream])[order][1:] & bool(counts)
    return np.bincount(cell[order][1:][gap], minlength=int(cell.max()) + 1)[cell] > 0
