"""Work that hides behind operators, in jobs of which only operators were recorded.

An operator on a stream of its own covers what its rank computes meanwhile. Of two operators that
follow each other on that stream, a rank that waits for the others in the first has done the work
before the second when that begins: no time lies between the two, though it worked. The last rank
waits for nobody, so all of its work shows. Compared by what shows, it takes several times as long
as the others, and healing it seems to win back all the work that they do behind its back.

So each gap, the time before one operator of a step in which no other covers it, is compared by
itself. A gap that most ranks have in a step is *open*: all work shows. In any other, what ranks
need is the median of those that have it, on the scale of their open gaps: a rank that takes 1.5
times as long in these takes 1.5 times as long in others. No rank needs less than that.

Cost: one sort of the operators. Cannot see: work that no rank shows in any step; whether a rank
that is late in open gaps by a fixed time is slow in the others at all, which makes its cost too
large by up to what it hides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.thresholds import AT_ONCE_NS
from stepscope.window import Floats, Ints, Mask, Union

MOSTLY = 0.5
"""Part of the ranks that must have a gap in a step for it to be open: the median rank has one."""


@dataclass(frozen=True)
class Gaps:
    """The time that nothing covers before each operator: rows of `comm_ops`."""

    cell: Ints
    """The rank and step of each row, as one number."""
    place: Ints
    """What each row is in its step, the same number on all ranks."""
    lasted_ns: Floats
    shape: tuple[int, int]
    """Ranks and steps."""

    @classmethod
    def of(
        cls, cell: Ints, place: Ints, begin: Ints, busy: Union, shape: tuple[int, int]
    ) -> Gaps:
        """The gaps before operators that begin at these places on the axis."""
        order = np.argsort(begin, kind="stable")
        before = np.empty_like(begin)
        before[order] = np.concatenate((begin[order[:1]], begin[order[:-1]]))
        lasted = begin - before - busy.within(before, begin)
        return cls(cell, place, lasted.astype(np.float64), shape)

    def hidden(self) -> Floats:
        """How much more than it shows each rank needs in each step, `[rank, step]` in ns."""
        open_row = self._open[self._step_and_place]
        usual = self._usual_ns
        shown = stats.sums(self.cell[open_row], self.lasted_ns[open_row], self._cells)
        needed = stats.sums(self.cell[open_row], usual[open_row], self._cells)
        speed = np.where(needed > 0, shown / np.maximum(needed, 1.0), 1.0).clip(min=1.0)
        seen = ~open_row & (self.lasted_ns > AT_ONCE_NS)
        level = _medians(self.place[seen], self.lasted_ns[seen] / speed[self.cell[seen]],
                         int(self.place.max()) + 1)  # fmt: skip
        more = np.where(open_row, 0.0, np.maximum(level[self.place] - self.lasted_ns, 0.0))
        return stats.sums(self.cell, more, self._cells).reshape(self.shape)

    @property
    def _cells(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def _step_and_place(self) -> Ints:
        return self.place * self.shape[1] + self.cell % self.shape[1]

    @property
    def _open(self) -> Mask:
        """By step and place, whether most ranks have a gap there."""
        size = (int(self.place.max()) + 1) * self.shape[1]
        have = stats.sums(self._step_and_place, self.lasted_ns > AT_ONCE_NS, size)
        return np.asarray(have > MOSTLY * np.bincount(self._step_and_place, minlength=size))

    @property
    def _usual_ns(self) -> Floats:
        """For each row the median of all ranks at its place in its step."""
        at = self._step_and_place
        return _medians(at, self.lasted_ns, int(at.max()) + 1)[at]


def _medians(number: Ints, values: Floats, size: int) -> Floats:
    """The median of the values of each number; 0 where there are none."""
    order = np.lexsort((values, number))
    counts = np.bincount(number, minlength=size)
    first = np.cumsum(counts) - counts
    known = counts > 0
    middle = np.zeros(size)
    low = (first + (counts - 1) // 2)[known]
    high = (first + counts // 2)[known]
    middle[known] = (values[order[low]] + values[order[high]]) / 2
    return middle
