"""Culprits that have one cause in common: the ranks of a host, or of a replica of the model.

What strikes all ranks of a host is the host's, and what strikes all that share their samples is the
samples'. Each alone may cost too little for a verdict: they are joined before that is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepscope.diagnose.finding import Device, Evidence, Finding
from stepscope.diagnose.methods import clock
from stepscope.diagnose.routing import replicas
from stepscope.window import Window

WHOLE = 0.75
"""So many ranks of a host or replica slow for one cause: it is theirs in common."""
SEVERAL = 4
"""Devices of one host do not go bad by chance at once; two or three may."""
ALIKE = 2.0
"""Times the least excess ratio among ranks that something in common slows down."""
INFERRED = 0.6
"""Most confidence in strangers that nobody saw, as with transfers that explain a rise."""


@dataclass(frozen=True)
class Slow:
    """A finding about slow ranks, and what supports its cause."""

    finding: Finding
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True)
class _Unit:
    """What ranks have in common: a host, or one replica of the model where `host` is empty."""

    ranks: frozenset[int]
    host: str = ""


def joined(window: Window, found: Sequence[Slow]) -> list[Slow]:
    """The findings with those joined that are one host's or one replica's, the largest first."""
    left = {rank: one for one in found for rank in one.finding.ranks}
    whole: list[Slow] = []
    for unit in _units(window):
        for same in _by_cause([left[rank] for rank in sorted(unit.ranks) if rank in left]):
            if len(same) >= WHOLE * len(unit.ranks):
                one = _common(same, unit.host)
                if one is not None:
                    whole.append(one)
                    left = {rank: slow for rank, slow in left.items() if slow not in same}
    return [*whole, *left.values()]


def _units(window: Window) -> list[_Unit]:
    """Hosts and replicas, by the ranks that were recorded of them; not the job as a whole."""
    seen = frozenset(window.ranks)
    units = [_Unit(frozenset(host.ranks) & seen, host.name) for host in window.job.hosts]
    units += [_Unit(ranks) for ranks in replicas(window)]
    return sorted((one for one in units if one.ranks and one.ranks != seen),
                  key=lambda one: -len(one.ranks))  # fmt: skip


def _by_cause(found: Sequence[Slow]) -> list[list[Slow]]:
    causes = dict.fromkeys(one.finding.cause for one in found)
    return [[one for one in found if one.finding.cause == cause] for cause in causes]


def _common(same: Sequence[Slow], host: str) -> Slow | None:
    """What they are as one; None where being together explains nothing."""
    first = same[0].finding
    if not host:
        return _more_samples(same) if first.cause == "compute" else None
    if len(same) < 2:
        return None
    return _sharing(same, host) or _join(same)


def _more_samples(same: Sequence[Slow]) -> Slow | None:
    """All ranks of a replica slow in their passes alone: it has more work to do."""
    if not all(one.finding.values.get("slow_in") == "passes" for one in same):
        return None
    clocks = [one.finding.values.get("clock") for one in same]
    if any(isinstance(one, float) and clock.is_low(one) for one in clocks):
        return None
    if len(same) == 1 and clocks == [None]:
        return None
    one = _join(same)
    detail = "both passes take longer and the optimizer does not: more samples, not slower devices"
    evidence = Evidence("passes", detail, {"ranks": [int(rank) for rank in one.finding.ranks]})
    return Slow(replace(one.finding, cause="load_imbalance"), (evidence, *one.evidence))


def _sharing(same: Sequence[Slow], host: str) -> Slow | None:
    """All devices of a host slow alike at their full clocks: something shares them."""
    values = [one.finding.values for one in same]
    clocks = [one.get("clock") for one in values]
    slower = [(one.finding.slowdown or 1.0) - 1 for one in same]
    if same[0].finding.cause != "compute" or len(same) < SEVERAL or min(slower) <= 0:
        return None
    if not all(isinstance(one, float) and not clock.is_low(one) for one in clocks):
        return None
    if any(one.get("slow_in") != "everything" for one in values):
        return None
    if max(slower) > ALIKE * min(slower):
        return None
    one = _join(same)
    sure = min(one.finding.confidence, INFERRED)
    detail = "all devices of the host are slow alike in all they do, at the clock of their peers"
    finding = replace(
        one.finding, cause="contention", confidence=sure, phase=None,
        devices=(Device("host", host, round(sure, 3)),),
        values={**one.finding.values, "shared_devices": True},
    )  # fmt: skip
    return Slow(finding, (Evidence("together", detail, {"devices": len(same)}), *one.evidence))


def _join(same: Sequence[Slow]) -> Slow:
    """One finding for several ranks, told by the costliest, that costs what they cost together."""
    worst = max(same, key=lambda one: lost_fraction(one.finding) or 0.0)
    phases = {one.finding.phase for one in same}
    ranks = tuple(sorted(rank for one in same for rank in one.finding.ranks))
    shares = [lost_fraction(one.finding) for one in same]
    known = [share for share in shares if share is not None]
    lost = min(sum(known), 1.0) if known else None
    finding = replace(
        worst.finding, ranks=ranks, phase=worst.finding.phase if len(phases) == 1 else None,
        values={**worst.finding.values, "lost_fraction": lost},
    )  # fmt: skip
    return Slow(finding, worst.evidence)


def lost_fraction(finding: Finding) -> float | None:
    """The share of step time a finding says would come back."""
    share = finding.values.get("lost_fraction")
    return share if isinstance(share, float) else None
