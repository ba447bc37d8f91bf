"""Work that hides behind operators, in jobs of which only operators were recorded.

An operator on a stream of its own covers what its rank computes meanwhile. Of two operators that
follow each other on that stream, a rank that waits for the others in the first has done the work
before the second when that begins: no time lies between the two, though it worked. The last rank
waits for nobody, so all of its work shows. Compared by what shows, it takes several times as long
as the others, and healing it seems to win back all the work that they do behind its back.

So each *gap*, the time before one operator of a step in which no other covers it, is compared by
itself, with its *cover*, the rest of the time since the operator before began:

- *Beside*: the longer a rank is covered, the shorter is its gap. It works meanwhile, and its work
  is both together. Each rank is compared with its usual self, and each step with all ranks: a rank
  that is slow in everything is covered for a shorter time, too, without working in it.
- *Hidden*: a rank that is covered for longer than the last one waits, and may work meanwhile. It
  needs what the last ranks need there, on the scale of their *open* gaps, which most ranks have in
  a step: a rank that takes 1.5 times as long in these takes 1.5 times as long in others. That scale
  is the lower quartile of its gaps, because the others' work may hide in open gaps, too.

Cost: two sorts of the operators. Cannot see: work that no rank shows in any step; whether a rank
that is late in open gaps by a fixed time is slow in the others at all, which makes its cost too
large by up to what it hides.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.thresholds import AT_ONCE_NS, FAST, HALF
from stepscope.window import Floats, Ints, Mask, Union, union

MIRROR = 0.5
"""Minus the slope of a gap against its cover: 1 beside, 0 where ranks wait, halfway between."""
LEAST_COMPARED = 0.1
"""Part of a rank's gaps, at least, that shows how long it takes in others than the longest. Our
choice."""
MEDIAN_ERROR, STANDARD_ERRORS = 1.25, 3.0
"""Of a median in those of a mean, and by how many of them the slope must be beyond halfway: one
place of 700 is by chance. Statistics."""


@dataclass(frozen=True)
class Gaps:
    """The time before each operator: rows of `comm_ops`."""

    cell: Ints
    """The rank and step of each row, as one number."""
    place: Ints
    """What each row is in its step, the same number on all ranks."""
    within: Mask
    """Operators within passes: ranks wait for these."""
    gap_ns: Floats
    cover_ns: Floats
    shape: tuple[int, int]
    """Ranks and steps."""

    @classmethod
    def of(
        cls, cell: Ints, place: Ints, within: Mask, begin: Ints, end: Ints, busy: Union,
        steps: Ints,
    ) -> Gaps:  # fmt: skip
        """The gaps before operators that begin and end at these places on the axis.

        No work hides behind an operator within passes, in which its rank waits. Nor does that of a
        step behind what ended before its rank began the step.

        Args:
            steps: `[rank, step]`: where each begins on the axis.
        """
        order = np.argsort(begin, kind="stable")
        before = np.empty_like(begin)
        before[order] = np.concatenate((begin[order[:1]], begin[order[:-1]]))
        before = np.clip(steps.ravel()[cell], before, begin)
        cover = busy.within(before, begin)
        gap = (begin - before - cover).astype(np.float64)
        cover -= union(begin[within], end[within]).within(before, begin)
        ranks, columns = steps.shape
        return cls(cell, place, within, gap, cover.astype(np.float64), (ranks, columns))

    def hidden(self) -> Floats:
        """How much more than its gaps each rank needs in each step, `[rank, step]` in ns."""
        most = (
            self.gap_ns + self.cover_ns - np.where(self._beside[self.place], 0, self._least_cover)
        )
        needed = np.maximum(self.work_ns, np.minimum(self._level[self.place], most))
        more = np.where(self.within, self.work_ns, needed) - self.gap_ns
        return stats.sums(self.cell, more, prod(self.shape)).reshape(self.shape)

    @property
    def _level(self) -> Floats:
        """What the last ranks need at each place, on the scale of their open gaps."""
        last = self.cover_ns <= self._least_cover + AT_ONCE_NS
        last &= (self.gap_ns > AT_ONCE_NS) & ~self.within
        on_scale = self.work_ns[last] / self._speed[self.cell[last]]
        return self._medians(self.place[last], on_scale)

    @property
    def _speed(self) -> Floats:
        """How many times as long as others each rank takes in each step, at least 1."""
        rows = self._in_order
        ratio, cell = self.work_ns[rows] / self._reference[rows], self.cell[rows]
        order = np.lexsort((ratio, cell))
        weight = self._reference[rows][order]
        whole = np.bincount(cell, weights=weight, minlength=prod(self.shape))
        before = np.cumsum(whole) - whole
        at = np.searchsorted(np.cumsum(weight), before + FAST * whole)
        known = ratio[order][at.clip(0, max(rows.size - 1, 0))] if rows.size else 1.0
        return np.asarray(np.where(whole > 0, known, 1.0)).clip(min=1.0)

    def elsewhere(self) -> Floats:
        """How many times as long as others each rank takes in each step in all gaps but the one in
        which it takes the most longer, `[rank, step]`; NaN where these are too short to show it."""
        rows = self._in_order
        last = np.append(self.cell[rows][1:] != self.cell[rows][:-1], True)[: rows.size]
        rest = rows[~last]
        spent = stats.sums(self.cell[rest], self.work_ns[rest], prod(self.shape))
        usual = stats.sums(self.cell[rest], self._reference[rest], prod(self.shape))
        whole = stats.sums(self.cell[rows], self._reference[rows], prod(self.shape))
        known = (whole > 0) & (usual >= LEAST_COMPARED * whole)
        return np.where(known, spent / np.maximum(usual, 1.0), np.nan).reshape(self.shape)

    def in_open(self) -> Floats:
        """How many times as long as the median rank each rank takes in each step in open gaps,
        `[rank, step]`: operators hide no work there. NaN in steps without any."""
        rows = np.flatnonzero(self._open)
        spent = stats.sums(self.cell[rows], self.work_ns[rows], prod(self.shape))
        usual = stats.sums(self.cell[rows], self._reference[rows], prod(self.shape))
        known = usual > 0
        return np.where(known, spent / np.where(known, usual, 1.0), np.nan).reshape(self.shape)

    @cached_property
    def _reference(self) -> Floats:
        """What is usual at each row's place, where most ranks have a gap: in its step, or else in
        any; 0 where they have in none."""
        at = self._open
        ever = self._medians(self.place[at], self.work_ns[at])
        return np.where(at, self._usual(self.work_ns), ever[self.place])

    @cached_property
    def _in_order(self) -> Ints:
        """Rows with a gap of which it is known what is usual, cell by cell, by their excess."""
        rows = np.flatnonzero((self._reference > AT_ONCE_NS) & (self.gap_ns > AT_ONCE_NS))
        return rows[np.lexsort((self.work_ns[rows] - self._reference[rows], self.cell[rows]))]

    @cached_property
    def _least_cover(self) -> Floats:
        """For each row the shortest cover of any rank at its place in its step."""
        at = self._step_and_place
        least = np.full(self._places * self.shape[1], np.inf)
        np.minimum.at(least, at, self.cover_ns)
        return least[at]

    @cached_property
    def work_ns(self) -> Floats:
        """The gap, and what covers it where ranks work beside."""
        beside = self._beside[self.place] & (self.gap_ns > AT_ONCE_NS)
        return np.where(beside, self.gap_ns + self.cover_ns, self.gap_ns)

    def _medians(self, place: Ints, values: Floats) -> Floats:
        """The median of the values of each place; 0 where there are none."""
        return stats.medians_of(place, values, self._places)

    @cached_property
    def _places(self) -> int:
        return int(self.place.max(initial=-1)) + 1

    @cached_property
    def _step_and_place(self) -> Ints:
        return self.place * self.shape[1] + self.cell % self.shape[1]

    @cached_property
    def _rank_and_place(self) -> Ints:
        return self.place * self.shape[0] + self.cell // self.shape[1]

    @cached_property
    def _open(self) -> Mask:
        """Whether most ranks have each row's gap in its step."""
        at = self._step_and_place
        size = self._places * self.shape[1]
        have = np.bincount(at[self.gap_ns > AT_ONCE_NS], minlength=size)
        return np.asarray(have > HALF * np.bincount(at, minlength=size))[at]

    def _usual(self, values: Floats) -> Floats:
        """For each row the median of all ranks at its place in its step."""
        at = self._step_and_place
        return stats.medians_of(at, values, self._places * self.shape[1])[at]

    def _unusual(self, values: Floats) -> Floats:
        """What each row differs by from other ranks in its step, and from its rank in others."""
        apart = values - self._usual(values)
        at = self._rank_and_place
        return apart - stats.medians_of(at, apart, self._places * self.shape[0])[at]

    @cached_property
    def _beside(self) -> Mask:
        """By place, whether ranks work while an operator before covers it."""
        gap, cover = self._unusual(self.gap_ns), self._unusual(self.cover_ns)
        size = np.abs(cover)
        least = np.maximum(self._medians(self.place, size), AT_ONCE_NS)
        tells = (size >= least[self.place]) & (self.gap_ns > AT_ONCE_NS) & ~self.within
        place, slope = self.place[tells], -gap[tells] / cover[tells]
        middle, count = self._medians(place, slope), np.bincount(place, minlength=self._places)
        scatter = stats.MAD_TO_SIGMA * self._medians(place, np.abs(slope - middle[place]))
        error = MEDIAN_ERROR * scatter / np.sqrt(np.maximum(count, 1))
        return np.asarray((count > 0) & (middle - STANDARD_ERRORS * error > MIRROR))
