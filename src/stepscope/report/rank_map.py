"""Times of all ranks by phase or part of a step, as a matrix with medians."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.finding import Diagnosis
from stepscope.window import Floats

COUNTS = 0.01
"""Share of a step; a part below it on every rank gets no column."""
UNUSUAL_SHARE = 0.05
"""Share of the median own time per step; a smaller difference in one phase is noise."""


@dataclass(frozen=True)
class RankMap:
    """`times_ns[rank, phase]`, NaN where unknown; `phases` are the columns, in order."""

    ranks: tuple[int, ...]
    phases: tuple[str, ...]
    times_ns: Floats

    def own_ns(self, rank: int, phase: str) -> int | None:
        """The time of a rank in a phase; None if unknown."""
        value = float(self.times_ns[self._row[rank], self._column[phase]])
        return None if np.isnan(value) else int(value)

    @cached_property
    def medians(self) -> dict[str, float]:
        """The time of the median rank in each phase."""
        return dict(zip(self.phases, self._medians.tolist(), strict=True))

    @cached_property
    def usual_ns(self) -> float:
        """The sum of the medians of all phases."""
        return float(self._medians.sum())

    def excess(self, rank: int, phase: str) -> float | None:
        """How far a rank is from the median of the phase, as a share of it: 0.9 is 1.9x as long.

        A very short phase is compared with a share of the whole step instead; else a data loader
        that takes two microseconds instead of one would look like the worst of all. None if
        unknown.
        """
        own = self.own_ns(rank, phase)
        if own is None:
            return None
        scale = max(self.medians[phase], UNUSUAL_SHARE * self.usual_ns)
        return (own - self.medians[phase]) / scale if scale > 0 else 0.0

    def unusual(self, first: Iterable[int] = ()) -> list[int]:
        """The ranks in `first`, then those far enough from the median to matter, farthest first."""
        named = sorted(set(first) & set(self.ranks))
        farthest = np.argsort(-self._oddity_ns, kind="stable")
        odd = farthest[self._oddity_ns[farthest] >= UNUSUAL_SHARE * self.usual_ns]
        others = (self.ranks[row] for row in odd.tolist())
        return named + [rank for rank in others if rank not in named]

    @cached_property
    def _oddity_ns(self) -> Floats:
        """How far each rank is from the median in its most unusual phase."""
        apart = np.nan_to_num(np.abs(self.times_ns - self._medians))
        return np.asarray(apart.max(axis=1, initial=0.0))

    @cached_property
    def _medians(self) -> Floats:
        if not self.times_ns.size:
            return np.zeros(len(self.phases))
        return np.asarray(np.nanmedian(self.times_ns, axis=0))

    @cached_property
    def _row(self) -> dict[int, int]:
        return {rank: row for row, rank in enumerate(self.ranks)}

    @cached_property
    def _column(self) -> dict[str, int]:
        return {phase: column for column, phase in enumerate(self.phases)}


def rank_map(diagnosis: Diagnosis) -> RankMap:
    """Own time by rank and phase, the longest phase first."""
    cells = diagnosis.rank_phases
    phases = sorted({cell.phase for cell in cells})
    number = {phase: column for column, phase in enumerate(phases)}
    ranks, row = np.unique([cell.rank for cell in cells], return_inverse=True)
    times = np.full((len(ranks), len(phases)), np.nan)
    column = np.array([number[cell.phase] for cell in cells], np.int64)
    times[row, column] = [cell.own_ns for cell in cells]
    longest = np.argsort(-np.nansum(times, axis=0), kind="stable")
    named = tuple(phases[column] for column in longest)
    return RankMap(tuple(map(int, ranks)), named, times[:, longest])


PARTS = {
    "compute": "compute_ns",
    "exposed comm.": "exposed_ns",
    "copies": "copy_ns",
    "idle: host late": "host_wait_ns",
    "idle: gaps": "kernel_wait_ns",
    "idle: other": "other_ns",
    "hidden comm.": "hidden_ns",
}
"""Column heads for the parts of an average step. Hidden communication comes last because it is not
part of the sum."""


def time_map(diagnosis: Diagnosis) -> RankMap:
    """The parts of an average step that are long enough on some rank."""
    found = sorted(diagnosis.rank_times, key=lambda time: time.rank)
    times = np.array([[getattr(time, name) for name in PARTS.values()] for time in found], float)
    times = times.reshape(len(found), len(PARTS))
    hidden = list(PARTS.values()).index("hidden_ns")
    least = COUNTS * (times.sum(axis=1) - times[:, hidden])
    counts = (times > least[:, None]).any(axis=0)
    shown = tuple(part for part, kept in zip(PARTS, counts.tolist(), strict=True) if kept)
    ranks = tuple(time.rank for time in found) if shown else ()
    return RankMap(ranks, shown, times[: len(ranks), counts])


def named_phases(diagnosis: Diagnosis, own: RankMap) -> tuple[str, ...]:
    """The phases, those named by verdicts first, so that a cut to fit the width keeps them."""
    named = {verdict.phase for verdict in diagnosis.verdicts}
    return tuple(sorted(own.phases, key=lambda phase: phase not in named))


def culprit_ranks(diagnosis: Diagnosis) -> frozenset[int]:
    return frozenset(rank for verdict in diagnosis.verdicts for rank in verdict.ranks)
