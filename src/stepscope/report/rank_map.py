"""Own time of every rank in every phase, as a matrix with each phase's median beside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from stepscope.diagnose.finding import Diagnosis

UNUSUAL_SHARE = 0.05
"""Of a rank's usual own time per step: a smaller difference in one phase is noise to the eye."""


@dataclass(frozen=True)
class RankMap:
    """`own_ns[rank, phase]` where it is known; phases ordered from the longest to the shortest."""

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
    return _map({(cell.rank, cell.phase): cell.own_ns for cell in diagnosis.rank_phases})


PARTS = {
    "compute": "compute_ns",
    "communication": "exposed_ns",
    "(hidden)": "hidden_ns",
    "copies": "copy_ns",
    "idle: host late": "host_wait_ns",
    "idle: device": "kernel_wait_ns",
    "idle: other": "other_ns",
}
"""Where an average step went, as tables head it; hidden communication runs beside computing."""


def time_map(diagnosis: Diagnosis) -> RankMap:
    """The parts of an average step; those that nobody has are left out."""
    own = {
        (time.rank, part): getattr(time, name)
        for time in diagnosis.rank_times
        for part, name in PARTS.items()
    }
    there = {part for (_, part), value in own.items() if value > 0}
    return _map({key: value for key, value in own.items() if key[1] in there})


def _map(own: dict[tuple[int, str], int]) -> RankMap:
    ranks = tuple(sorted({rank for rank, _ in own}))
    phases = {phase for _, phase in own}
    totals = {phase: sum(ns for (_, p), ns in own.items() if p == phase) for phase in phases}
    return RankMap(ranks, tuple(sorted(phases, key=lambda p: (-totals[p], p))), own)


def named_phases(diagnosis: Diagnosis, own: RankMap) -> tuple[str, ...]:
    """The phases with those that verdicts name in front, where a cut to fit cannot lose them."""
    named = {verdict.phase for verdict in diagnosis.verdicts}
    return tuple(sorted(own.phases, key=lambda phase: phase not in named))


def culprit_ranks(diagnosis: Diagnosis) -> frozenset[int]:
    return frozenset(rank for verdict in diagnosis.verdicts for rank in verdict.ranks)
