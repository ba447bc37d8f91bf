"""The rank whose calls in one step differ from its own earlier steps, from flight recorder dumps.

A rank that leaves out a send or a receive hangs its whole pipeline, and no other rank need have the
same program. But a step repeats: the sequence of a rank's calls is cut at its rarest recurring
collective, and every part is compared with the first whole one. A send counts by its group, its
direction and its peer.
Somebody is named only if a single rank left its own order, and others were seen to keep theirs: an
evaluation, a checkpoint or a growing batch changes the calls of all ranks, or of both ends.
Cost: one sort of the operators, then a pass over each rank's calls.
Cannot see: a rank whose ring buffer holds less than one whole step before the fault; a program
whose steps differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.operators.progress import Recording
from stepscope.window import Ints, Mask

WITNESSES = 2
"""Other ranks that were seen to repeat their steps: one is not a majority. As `equals.VOTES`."""
LEAST_MARKS = 2
"""A call that was made once marks no step: it may be part of the set-up. Our choice."""

MISSED_MARKS = 2
"""A mark recurs until the end, where one may have been left out: the calls after the last one are
fewer than two steps. Our choice."""

SAMENESS = (("group", "call", "peer", "shape"), ("group", "call", "peer"))
"""What makes two calls the same. Sizes tell calls of one kind apart, if they do not vary by step;
those of an AllToAll do."""


@dataclass(frozen=True)
class OwnDeparture:
    """The first call of a rank that differs from what it called there in the step before."""

    rank: int
    row: int
    """The row of the call that it made."""
    usual: int
    """The row of the call that it made there before."""


def find_own_departure(recording: Recording, witnesses: int = WITNESSES) -> OwnDeparture | None:
    """The departure of the only rank that left the order of its own steps, if so many kept it."""
    found = (_only_one(recording, _kinds(recording, names), witnesses) for names in SAMENESS)
    return next((one for one in found if one is not None), None)


def _only_one(recording: Recording, kinds: Ints, witnesses: int) -> OwnDeparture | None:
    order = np.lexsort((recording.comm.ints("record"), recording.comm.ints("rank")))
    starts = np.flatnonzero(np.diff(recording.comm.ints("rank")[order])) + 1
    departed: list[OwnDeparture] = []
    kept = 0
    for rows in np.split(order, starts):
        steps = _Steps.of(kinds[rows], ~recording.p2p[rows])
        if steps is None:
            continue
        at = steps.departure()
        if at is None:
            kept += steps.has_order
        elif steps.returns(at):
            here, usual = (int(rows[place]) for place in at)
            departed.append(OwnDeparture(int(recording.comm.ints("rank")[here]), here, usual))
    return departed[0] if len(departed) == 1 and kept >= witnesses else None


def _kinds(recording: Recording, names: tuple[str, ...]) -> Ints:
    """A number for each row, equal for calls that are the same."""
    comm = recording.comm
    columns = [comm.ints(name) if name == "peer" else comm.strings(name).codes.astype(np.int64)
               for name in names if name != "shape"]  # fmt: skip
    if "shape" in names:
        shape = comm.strings("shape").codes.astype(np.int64)
        columns.append(np.where(comm.strings("op").equals("AllToAll"), -1, shape))
    _, kinds = np.unique(np.stack(columns), axis=1, return_inverse=True)
    return kinds.reshape(-1).astype(np.int64)


@dataclass(frozen=True)
class _Steps:
    """The calls of one rank, in parts that end with its mark."""

    kinds: Ints
    ends: Ints
    """The places of the marks."""

    @classmethod
    def of(cls, kinds: Ints, collective: Mask) -> _Steps | None:
        """None if no whole step is there to compare with. The first part is not one: the ring
        lost its beginning, or it contains the set-up."""
        counts = np.bincount(kinds[collective]) if collective.any() else np.zeros(0, np.int64)
        recurring = np.flatnonzero(counts >= LEAST_MARKS)
        for mark in recurring[np.argsort(counts[recurring], kind="stable")].tolist():
            ends = np.flatnonzero(kinds == mark)
            if kinds.size - ends[-1] < MISSED_MARKS * int(np.diff(ends).max()):
                return cls(kinds, ends)
        return None

    @property
    def has_order(self) -> bool:
        """Whether a step is more than its mark: else there is no order to keep, and to show that
        others keep theirs."""
        return int(np.diff(self.ends).max()) > 1

    def departure(self) -> tuple[int, int] | None:
        """The places of the first call that differs, and of the one that it differs from."""
        first, length = int(self.ends[0]) + 1, int(self.ends[1] - self.ends[0])
        rest = self.kinds[first + length :]
        usual = np.resize(self.kinds[first : first + length], rest.size)
        differs = np.flatnonzero(rest != usual)
        if not differs.size:
            return None
        at = int(differs[0])
        return first + length + at, first + at % length

    def returns(self, at: tuple[int, int]) -> bool:
        """Whether one call makes the difference: it was left out, added, replaced or swapped with
        the next, and all later ones are as before."""
        here, usual = at
        first, length = int(self.ends[0]) + 1, int(self.ends[1] - self.ends[0])
        phase, cycle = usual - first, self.kinds[first : first + length]

        def goes_on(place: int, phase: int) -> bool:
            rest = self.kinds[place:]
            return bool((rest == np.resize(np.roll(cycle, -phase), rest.size)).all())

        after = cycle[(phase + 1) % length]
        swapped = self.kinds[here] == after and list(self.kinds[here + 1 : here + 2]) == [
            cycle[phase]
        ]
        return (goes_on(here, phase + 1) or goes_on(here + 1, phase)
                or goes_on(here + 1, phase + 1)
                or (bool(swapped) and goes_on(here + 2, phase + 2)))  # fmt: skip
