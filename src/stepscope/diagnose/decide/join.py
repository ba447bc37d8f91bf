"""Culprits that have one cause in common: the ranks of a host, or of a replica of the model.

What strikes all ranks of a host is the host's, and what strikes all that share their samples is the
samples'. Each alone may cost too little for a verdict: they are joined before that is asked. Of
neighbours on a host, which are not all that is there, one verdict is enough where they are slow
alike and at the same time: by chance devices do not go bad at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepscope.diagnose.explain import gpu_clock as clock
from stepscope.diagnose.finding import Device, Evidence, Finding
from stepscope.diagnose.views.peers import replicas
from stepscope.window import Window

WHOLE = 0.75
"""So many ranks of a host or replica slow for one cause: it is theirs in common."""
SEVERAL = 4
"""Devices of one host do not go bad by chance at once; two or three may."""
ALIKE = 2.0
"""Times the least excess ratio among ranks that something in common slows down."""
INFERRED = 0.6
"""Most confidence in strangers that nobody saw, as with transfers that explain a rise."""
AT_ONCE = 0.9
"""So much of the time in which any of them is slow. Two faults that begin when they like, and stay,
meet this in one pair of ten; that they are on one host as well is one in as many as there are."""
BLOWS_AT_ONCE = 0.5
"""Of steps in which any of them is struck, as in `culprits`: a light blow may stay unseen on one.
Two that are struck in half of the steps each share a third of these by chance."""


@dataclass(frozen=True)
class Slow:
    """A finding about slow ranks, and what supports its cause."""

    finding: Finding
    evidence: tuple[Evidence, ...]
    columns: frozenset[int] = frozenset()
    """Steps, or windows, in which it is slow, as numbers within what was looked at."""
    costs_alone: bool = False
    """Whether its cost is what it takes longer itself: of several the others wait for the last."""
    has_onset: bool = False
    """Whether it was well for a part of the time: when two began may be compared."""


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
    return [*whole, *_neighbours(window, list(left.values()))]


def _neighbours(window: Window, found: Sequence[Slow]) -> list[Slow]:
    """The findings with those joined that some ranks of one host share."""
    told: list[Slow] = []
    hosts: dict[tuple[str | None, str], list[Slow]] = {}
    for one in found:
        host = window.host_of(one.finding.ranks[0])
        hosts.setdefault((host, one.finding.cause), []).append(one)
    for (host, _), same in hosts.items():
        told += same if host is None else [_join(part) for part in _of_one_origin(same)]
    return told


def _of_one_origin(found: Sequence[Slow]) -> list[list[Slow]]:
    """Findings in parts, each about what is slow alike and at the same time."""
    parts: list[list[Slow]] = []
    for one in found:
        part = next((part for part in parts if _is_alike(part[0], one)), None)
        parts.append([one]) if part is None else part.append(one)
    return [kept for part in parts for kept in _if_no_chance(part)]


def _if_no_chance(part: list[Slow]) -> list[list[Slow]]:
    """Each by itself where a few have been slow all the time: as any other, it may be theirs."""
    together = len(part) >= SEVERAL or part[0].has_onset
    return [part] if together else [[one] for one in part]


def _is_alike(one: Slow, other: Slow) -> bool:
    """Whether two are slow in the same steps, and in degree as what shares a cause."""
    both, either = len(one.columns & other.columns), len(one.columns | other.columns)
    least = BLOWS_AT_ONCE if "blows" in one.finding.values else AT_ONCE
    degrees = sorted((each.finding.slowdown or 1.0) - 1 for each in (one, other))
    return both >= least * max(either, 1) and 0 < degrees[1] <= ALIKE * degrees[0]


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
    if len(same) == 1:
        return same[0]
    worst = max(same, key=lambda one: lost_fraction(one.finding) or 0.0)
    phases = {one.finding.phase for one in same}
    ranks = tuple(sorted(rank for one in same for rank in one.finding.ranks))
    shares = [lost_fraction(one.finding) for one in same]
    known = [share for share in shares if share is not None]
    whole = max(known, default=0.0) if worst.costs_alone else min(sum(known), 1.0)
    lost = whole if known else None
    finding = replace(
        worst.finding, ranks=ranks, phase=worst.finding.phase if len(phases) == 1 else None,
        values={**worst.finding.values, "lost_fraction": lost},
    )  # fmt: skip
    return Slow(finding, worst.evidence)


def lost_fraction(finding: Finding) -> float | None:
    """The share of step time a finding says would come back."""
    share = finding.values.get("lost_fraction")
    return share if isinstance(share, float) else None
