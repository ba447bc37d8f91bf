"""Phases with waiting that nobody measured, in which all ranks together take longer.

Own time leaves such phases out: what one rank takes longer comes back there as its peers' waiting.
But the rank that is waited for does not wait. So if even the rank that is in a phase for the
shortest time takes longer than before, step by step, nobody among the recorded ranks holds the
others up: the phase itself takes longer, or all wait for something else, such as a server. Passes
are left out: in these a rank works and others wait for it at once.
Source: blame rule 2, without operators, as `slow_exchange`.
Cost: sums of phases. Cannot see: which of the two it is; a rank that works in the phase in which
the others wait for it; ranks of different stages, which are in other phases.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect.steps.step_time import StepChange
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.phase_rows import PhaseRows, phase_rows
from stepscope.diagnose.views.unnamed import is_staged
from stepscope.diagnose.words.numbers import percent
from stepscope.window import Floats

NOTABLE = 0.1
"""A phase with this part of the rise is named, as `suspect.INFLATED`. Our choice."""


@dataclass(frozen=True)
class Grown:
    """Phases in which every rank takes longer, the largest rise first, and each one's part of the
    rise of the step."""

    parts: tuple[tuple[str, float], ...]

    @property
    def whole(self) -> float:
        return sum(part for _, part in self.parts)

    @property
    def phases(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.parts)

    @property
    def says(self) -> str:
        shares = " and ".join(f"{percent(part)} of the rise is in {name}"
                              for name, part in self.parts)  # fmt: skip
        return f"{shares}, even on the rank that is in it for the shortest time"


def grown_phases(job: Observed, change: StepChange) -> Grown | None:
    """The phases that explain at least half of a rise; None where they do not.

    Phases in which waiting was inferred are asked as well: it may be waiting for a server.
    """
    rows, step_ns = phase_rows(job.window, job.line), change.after_ns - change.before_ns
    if rows is None or is_staged(job.window) or step_ns <= 0:
        return None
    hidden = sorted((job.own.hidden_phases | frozenset(job.own.inferred)) - rows.passes)
    before, after = slice(job.line.warm_up, change.split), slice(change.split, None)
    risen = {name: stats.median(least[after]) - stats.median(least[before])
             for name, least in zip(hidden, _least_ns(rows, hidden), strict=True)}  # fmt: skip
    parts = [(name, rise / step_ns) for name, rise in risen.items() if rise >= NOTABLE * step_ns]
    found = Grown(tuple(sorted(parts, key=lambda part: -part[1])))
    return found if found.whole >= HALF else None


def _least_ns(rows: PhaseRows, phases: list[str]) -> Floats:
    """`[phase, step]`: how long the rank that is in a phase for the shortest time is in it; a rank
    that is not in it takes no time there."""
    lasted = rows.grids(rows.duration, phases)
    present = rows.entered(list(rows.names.values)).any(axis=0)
    lasted = np.where(np.isnan(lasted) & present, 0.0, lasted)
    return np.asarray(np.fmin.reduce(lasted, axis=1))
