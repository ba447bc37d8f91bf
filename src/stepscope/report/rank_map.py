"""What every rank took in every phase or part of a step, as a matrix with medians beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from stepscope.diagnose.finding import Diagnosis

COUNTS = 0.01
"""Of a step: a part that takes less of it on every rank gets no column."""
UNUSUAL_SHARE = 0.05
"""Of a rank's usual own time per step: a smaller difference in one phase is noise to the eye."""


@dataclass(frozen=True)
class RankMap:
    """`own_ns[rank, phase]` where it is known; `phases` are the columns, in order."""

    ranks: tuple[int, ...]
    phases: tuple[str, ...]
    own_ns: dict[tuple[int, str], int]

    @cached_property
    def medians(self) -> dict[str, float]:
        """What the middle rank takes in each phase."""
        known = {phase: [self.own_ns[r, phase] for r in self.ranks if (r, phase) in self.own_ns]
                 for phase in self.phases}  # fmt: skip
        return {phase: median(times) for phase, times in known.items()}

    @cached_property
    def usual_ns(self) -> float:
        """What the middle rank takes in all phases together."""
        return sum(self.medians.values())

    def excess_ns(self, rank: int, phase: str) -> float:
        """How far a rank is from the phase's median; 0 where it is unknown."""
        own = self.own_ns.get((rank, phase))
        return 0.0 if own is None else own - self.medians[phase]

    def excess(self, rank: int, phase: str) -> float | None:
        """The same as a share of the median: 0.9 is 1.9 times as long; None where it is unknown.

        A phase that hardly counts is measured against a share of the whole instead, or a data
        loader that takes two microseconds instead of one would look like the worst of all.
        """
        if (rank, phase) not in self.own_ns:
            return None
        scale = max(self.medians[phase], UNUSUAL_SHARE * self.usual_ns)
        return self.excess_ns(rank, phase) / scale if scale > 0 else 0.0

    def oddity_ns(self, rank: int) -> float:
        """How far a rank is from the median in its most unusual phase."""
        return max((abs(self.excess_ns(rank, phase)) for phase in self.phases), default=0.0)

    def unusual(self, first: Iterable[int] = ()) -> list[int]:
        """The ranks in `first`, then those far enough from the median to matter, farthest first."""
        floor = UNUSUAL_SHARE * self.usual_ns
        named = sorted(set(first) & set(self.ranks))
        others = sorted(set(self.ranks) - set(named), key=lambda r: (-self.oddity_ns(r), r))
        return named + [rank for rank in others if self.oddity_ns(rank) >= floor]


def rank_map(diagnosis: Diagnosis) -> RankMap:
    """Own time in phases, the longest first."""
    own = {(cell.rank, cell.phase): cell.own_ns for cell in diagnosis.rank_phases}
    totals: Counter[str] = Counter()
    for (_, phase), own_ns in own.items():
        totals[phase] += own_ns
    phases = sorted(totals, key=lambda phase: (-totals[phase], phase))
    return RankMap(_ranks(own), tuple(phases), own)


PARTS = {
    "compute": "compute_ns",
    "communication": "exposed_ns",
    "copies": "copy_ns",
    "idle: host late": "host_wait_ns",
    "idle: gaps": "kernel_wait_ns",
    "idle: other": "other_ns",
    "hidden comm.": "hidden_ns",
}
"""Where an average step went, as tables head it; what computing hides comes last, as it is no part
of the sum."""


def time_map(diagnosis: Diagnosis) -> RankMap:
    """The parts of an average step that count for some rank."""
    own: dict[tuple[int, str], int] = {}
    counts: set[str] = set()
    for time in diagnosis.rank_times:
        parts = {part: getattr(time, name) for part, name in PARTS.items()}
        least = COUNTS * (sum(parts.values()) - time.hidden_ns)
        counts |= {part for part, value in parts.items() if value > least}
        own |= {(time.rank, part): value for part, value in parts.items()}
    own = {key: value for key, value in own.items() if key[1] in counts}
    return RankMap(_ranks(own), tuple(part for part in PARTS if part in counts), own)


def _ranks(own: dict[tuple[int, str], int]) -> tuple[int, ...]:
    return tuple(sorted({rank for rank, _ in own}))


def named_phases(diagnosis: Diagnosis, own: RankMap) -> tuple[str, ...]:
    """The phases with those that verdicts name in front, where a cut to fit cannot lose them."""
    named = {verdict.phase for verdict in diagnosis.verdicts}
    return tuple(sorted(own.phases, key=lambda phase: phase not in named))


def culprit_ranks(diagnosis: Diagnosis) -> frozenset[int]:
    return frozenset(rank for verdict in diagnosis.verdicts for rank in verdict.ranks)
