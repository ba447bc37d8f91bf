"""How long a rank's steps take outside communication, and whether that is why they became longer.

When a job becomes slower, the steps of all its ranks do. Most ranks spend what was added waiting in
communication; the rank that is slow spends it outside. So a host sees without asking any other
which of its ranks are suspects.

Lossy: time in communication is kept in slots of time, not operator by operator, as a rank may have
thousands of operators a second. Operators that overlap count once if they were reported together;
of others the sum counts, up to the length of the slot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from stepscope.processor.state.steps import Step
from stepscope.window import NULL, Floats, Ints, union

SLOT_NS = 62_500_000
"""An eighth of the shortest unit: ten units, which are compared, are known to 1 %."""
KEPT_SLOTS = 1 << 15
"""34 minutes; 256 KB a rank."""
UNIT_NS = 500_000_000
"""As `degradation.robust.UNIT_SECONDS`, whose rise is to be explained."""
KEPT_UNITS = 1_000
"""Older ones no longer say what is usual. Our choice."""
TEN = 10
"""Units of a mean, as in `degradation.robust`."""
LEAST_RISE = 0.05
"""Of the step time; EROICA: a job that is slower by more than 5 % has degraded."""
MOST_OF_IT = 0.5
"""Of the rise that must be outside communication: what is less is mostly waiting; statistics."""


@dataclass
class Covered:
    """How long a rank has been in communication, by slots of wall-clock time."""

    until_ns: int = 0
    """The end of the last operator known: what came later may not have been reported yet."""
    _first: int = 0
    _ns: Floats = field(default_factory=lambda: np.zeros(0))

    def add(self, start_ns: Ints, end_ns: Ints) -> None:
        """Takes operators that have ended; those without a start or an end are ignored."""
        timed = (start_ns != NULL) & (end_ns != NULL)
        found = union(start_ns[timed], end_ns[timed])
        if not found.start.size:
            return
        self.until_ns = max(self.until_ns, int(found.end[-1]))
        first, stop = int(found.start[0]) // SLOT_NS, (int(found.end[-1]) - 1) // SLOT_NS + 1
        first = max(self._with_room(first, stop), first)
        if first < stop:
            at = slice(first - self._first, stop - self._first)
            inside = np.diff(found.covered(np.arange(first, stop + 1) * SLOT_NS))
            self._ns[at] = np.minimum(self._ns[at] + inside, SLOT_NS)

    def before(self, moments_ns: Ints) -> Floats:
        """The time in communication until each of these moments, since the first slot that is
        kept; NaN before that."""
        edges = (self._first + np.arange(self._ns.size + 1)) * SLOT_NS
        sums = np.concatenate(([0.0], np.cumsum(self._ns)))
        since_ns = moments_ns - edges[0]
        return np.asarray(np.interp(since_ns, edges - edges[0], sums, left=np.nan))

    def _with_room(self, first: int, stop: int) -> int:
        """Makes room up to a slot, and returns the first one that is kept."""
        if not self._ns.size:
            self._first = max(first, stop - KEPT_SLOTS)
        kept_from = max(self._first, stop - KEPT_SLOTS)
        kept = self._ns[kept_from - self._first :]
        more = max(stop - kept_from - kept.size, 0)
        self._first, self._ns = kept_from, np.concatenate((kept, np.zeros(more)))
        return kept_from


@dataclass
class OwnTime:
    """The steps of one rank, and what of them is outside communication."""

    _covered: Covered = field(default_factory=Covered)
    _ends: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=KEPT_UNITS))
    """Steps, and when they ended: of each unit the last one."""

    def communicated(self, start_ns: Ints, end_ns: Ints) -> None:
        """Operators have ended."""
        self._covered.add(start_ns, end_ns)

    def stepped(self, steps: Iterable[Step], offset_ns: int) -> None:
        """Steps have ended; `offset_ns` is the wall clock minus the clock of the steps."""
        for one in steps:
            ended_ns = one.start_ns + one.duration_ns + offset_ns
            step, last_ns = self._ends[-1] if self._ends else (one.step - 1, 0)
            if one.step > step and ended_ns - last_ns >= UNIT_NS:
                self._ends.append((one.step, ended_ns))

    def restart(self) -> None:
        """What is usual is learnt anew."""
        self._ends.clear()

    @property
    def has_risen(self) -> bool:
        """Whether its steps take longer than usual now, and most of that is its own time."""
        took_ns, own_ns = self._units()
        whole = took_ns.size // TEN * TEN
        if whole < 2 * TEN:
            return False
        took, own = (one[-whole:].reshape(-1, TEN).mean(axis=1) for one in (took_ns, own_ns))
        usual = np.argsort(took[:-1], kind="stable")[: took.size // 2]
        rise, own_rise = (one[-1] - one[usual].mean() for one in (took, own))
        return bool(rise >= LEAST_RISE * took[usual].mean() and own_rise >= MOST_OF_IT * rise)

    def _units(self) -> tuple[Floats, Floats]:
        """The time of a step in each unit, and the part of it outside communication."""
        known = [one for one in self._ends if one[1] <= self._covered.until_ns]
        if len(known) <= TEN:
            return np.zeros(0), np.zeros(0)
        step, end_ns = np.array(known, np.int64).T
        steps, took_ns = np.diff(step), np.diff(end_ns)
        own_ns = took_ns - np.diff(self._covered.before(end_ns))
        seen = np.isfinite(own_ns)
        return (took_ns / steps)[seen], (own_ns / steps)[seen]
