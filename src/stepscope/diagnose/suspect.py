"""A suspect: one rank that takes longer than its peers, where and when, before blame is decided."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.views.unnamed import UNNAMED
from stepscope.window import Floats, Ints

DOMINANT = 0.5
"""A phase is named when it carries more than half of the rank's excess."""
INFLATED = 0.1
"""A phase with this share of the excess counts as inflated too."""


@dataclass(frozen=True)
class Suspect:
    """A rank slower than its peers from column `first` to before `stop`."""

    row: int
    phase: str | None
    phases: tuple[str, ...]
    """Every phase in which it is slower; none where its pauses alone count."""
    first: int
    stop: int
    effect: float
    z: float
    needed: float
    excess_ns: float
    """Per step, over its phases: what the rank takes longer than its peers."""
    slowdown: float
    inflated: int
    """How many phases carry a share of the excess."""
    struck: tuple[int, ...] = ()
    """The columns in which it is slow, where it is not so in all of them."""
    alone: bool = False
    """Whether it is named for the length of a blow, and not for how often it is struck."""
    worst: tuple[int, int] | None = None
    """Of these the run of columns with most of the excess, and before which it ends."""
    worst_ns: float = 0.0
    """Its excess per step there."""

    @property
    def columns(self) -> slice | Ints:
        """Where it is slow."""
        return np.array(self.struck, np.int64) if self.struck else slice(self.first, self.stop)

    @property
    def whole_ns(self) -> float:
        """Its excess in all steps together."""
        return self.excess_ns * (self.stop - self.first)

    @property
    def at_its_worst(self) -> Suspect:
        """Only where it is slow, so that what else was measured then is not diluted."""
        if self.worst is None:
            return self
        first, stop = self.worst
        return replace(self, first=first, stop=stop, excess_ns=self.worst_ns, struck=())

    @property
    def named_phase(self) -> str | None:
        """The phase as people know it; our own pseudo-phases are none."""
        return None if self.phase in UNNAMED else self.phase


def excess(job: Observed, own: Floats, phase: str | None, row: int) -> Floats:
    """Per step, how much longer the rank takes than the median of its peers; NaN unknown."""
    above: Floats = own[row] - peers(job, own, phase, row)
    return above


def peers(job: Observed, values: Floats, phase: str | None, row: int) -> Floats:
    """Column medians over the ranks that do the same work in a phase."""
    return stats.column_median(values[job.peers_of(row, phase)])


def excess_of(job: Observed, phase: str | None, row: int) -> Floats:
    """Per step, how much longer the rank takes in a phase (None: in all) than its peers do."""
    own = job.total if phase is None else job.own.own[job.own.phases.index(phase)]
    return excess(job, own, phase, row)


def dominant(shares: dict[str, float]) -> str | None:
    """The phase that carries most of the excess, if one does."""
    phase = max(shares, key=lambda name: shares[name])
    return phase if shares[phase] > DOMINANT * sum(shares.values()) else None
