"""Culprits with one cause in common: ranks of a host or replica, or that hold the same experts.

If all ranks of a host are slow, the host is to blame; if all ranks that share their samples are
slow, the samples are. Each rank alone may cost too little for a verdict, so they are joined before
costs are judged. Some of the ranks of a host get one verdict if they are equally slow at the same
time: devices do not become slow at once by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from stepscope.diagnose.decide.experts import holders, same_experts
from stepscope.diagnose.explain import gpu
from stepscope.diagnose.finding import Decision, Device, Evidence, Slowdown
from stepscope.diagnose.numeric.intervals import around
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.prepare.communication import loads
from stepscope.diagnose.words.advice import name_ranks
from stepscope.window import Window

WHOLE = 0.75
"""Part of the ranks of a host or replica that must be slow for one cause to be joined. Our
simulator."""
SEVERAL = 4
"""Devices of one host do not become slow by chance at once; two or three may. Our simulator."""
ALIKE = 2.0
"""Largest ratio between the excess ratios of ranks that one common cause slows down. Our
simulator."""
SWALLOWED = 3.0
"""Largest ratio between the excesses of ranks of one host or replica with one verdict. Measured on
real data: neighbours of a slow rank have a tenth of its excess."""
INFERRED = 0.6
"""Highest score of other processes that were not observed, as with transfers that explain a rise.
Our simulator."""
AT_ONCE = 0.9
"""Part of the time in which any of them is slow, that must be common to two. Two faults that begin
at random, and stay, meet this in one pair of ten; that they are on one host as well is one in as
many as there are hosts. Statistics."""
SPIKES_AT_ONCE = 0.5
"""The same for steps with spikes, as in `culprits`: a small spike may stay below the limit on one
rank. Two that have spikes in half of the steps each share a third of these by chance.
Statistics."""
MANY = 0.25
"""More than this part of all ranks are not equally slow by chance. Our choice, as
`two_speeds.ODD`."""


@dataclass(frozen=True)
class _Unit:
    """The ranks of one host, those that hold the same experts, or else of one replica of the
    model."""

    ranks: frozenset[int]
    host: str = ""
    experts: bool = False


def joined(
    job: Observed, found: Sequence[Slowdown], cluster: frozenset[int] = frozenset()
) -> list[Slowdown]:
    """The findings, those of one host or one replica joined, the largest first.

    Args:
        cluster: the slower ranks where all ranks have one of two speeds. If they are many, and
            equally slow at the same time, they have one verdict, wherever they are.
    """
    window = job.window
    whole = _with_all_beside(window, found)
    left = {rank: one for one in found if not one.beside for rank in one.ranks}
    for unit in _units(job):
        for cause in _by_cause([left[rank] for rank in sorted(unit.ranks) if rank in left]):
            same = _of_one_size(cause, lambda one: one.lost_ns)
            if unit.ranks <= cluster and len(same) > 1:
                same = cause
            if len(same) >= WHOLE * len(unit.ranks):
                one = _common(window, same, unit)
                if one is not None:
                    whole.append(one)
                    left = {rank: slow for rank, slow in left.items() if slow not in same}
    of_cluster = [one for rank, one in left.items() if rank in cluster]
    many = [part for part in alike_by_cause(of_cluster) if len(part) > MANY * len(window.ranks)]
    left = {rank: one for rank, one in left.items() if not any(one in part for part in many)}
    return [*whole, *map(as_one, many), *_neighbours(window, list(left.values()))]


def _with_all_beside(window: Window, found: Sequence[Slowdown]) -> list[Slowdown]:
    """Everything on a host that one measured cause slows down, as one finding: its ranks may be
    late in turns."""
    hosts: dict[str | None, list[Slowdown]] = {}
    for one in found:
        if one.beside:
            hosts.setdefault(window.host_of(one.ranks[0]), []).append(one)
    return [replace(_over_all_steps(same), ranks=tuple(sorted(
                {rank for one in same for rank in (*one.ranks, *one.beside)})))
            for same in hosts.values()]  # fmt: skip


def _over_all_steps(same: Sequence[Slowdown]) -> Slowdown:
    return replace(
        _join(same), columns=frozenset().union(*(one.columns for one in same)),
        steps=around(one.steps for one in same), time_ns=around(one.time_ns for one in same),
    )  # fmt: skip


def _neighbours(window: Window, found: Sequence[Slowdown]) -> list[Slowdown]:
    """The findings, those of some ranks of one host joined if they have one origin."""
    findings: list[Slowdown] = []
    hosts: dict[tuple[str | None, str], list[Slowdown]] = {}
    for one in found:
        host = window.host_of(one.ranks[0])
        hosts.setdefault((host, one.cause), []).append(one)
    several = len(window.job.hosts) > 1
    for (host, cause), same in hosts.items():
        if host is not None and several and cause == "data_loading":
            late = _of_one_size(same, _in_all)
            findings += [_late_loaders(late, host), *(one for one in same if one not in late)]
            continue
        findings += same if host is None else [
            _join(one) for part in _alike(same) for one in _if_no_chance(part)]  # fmt: skip
    return findings


def _late_loaders(same: Sequence[Slowdown], host: str) -> Slowdown:
    """Ranks of one host whose loaders are late, also in turns: they read by one disk and mount. Of
    several it is the host."""
    if len(same) == 1:
        return same[0]
    one = _over_all_steps(same)
    lost = sum((each.lost_fraction or 0.0) * _steps_of(each) for each in same) / _steps_of(one)
    often = len(one.columns) if any(each.spikes for each in same) else None
    return replace(
        one, devices=(Device("host", host, round(one.score, 3)),) * (len(same) >= SEVERAL),
        lost_fraction=min(lost, 1.0), spikes=often, of_steps=_steps_of(one), lost_of=None,
        values={**one.values, "lost_fraction": min(lost, 1.0)},
    )  # fmt: skip


def _steps_of(one: Slowdown) -> int:
    """The number of steps to which the cost of a finding is related."""
    first, last = one.lost_of or one.steps or (0, 0)
    return last - first + 1


def _alike(found: Sequence[Slowdown]) -> list[list[Slowdown]]:
    """Findings in parts, each of ranks that are equally slow at the same time."""
    parts: list[list[Slowdown]] = []
    for one in found:
        part = next((part for part in parts if _is_alike(part[0], one)), None)
        parts.append([one]) if part is None else part.append(one)
    return parts


def alike_by_cause(found: Sequence[Slowdown]) -> list[list[Slowdown]]:
    """Findings in parts, each of ranks that are equally slow at the same time for one cause."""
    return [part for cause in _by_cause(found) for part in _alike(cause)]


def as_one(same: Sequence[Slowdown]) -> Slowdown:
    """One finding for several ranks, wherever they are."""
    return _join(same, "are slow alike for the same cause")


def _if_no_chance(part: list[Slowdown]) -> list[list[Slowdown]]:
    """One finding for the part; or one for each rank, if a few ranks were slow all the time, which
    may be chance."""
    together = len(part) >= SEVERAL or part[0].has_onset
    return [part] if together else [[one] for one in part]


def _is_alike(one: Slowdown, other: Slowdown) -> bool:
    """Whether two are slow in the same steps, and by about as much."""
    both, either = len(one.columns & other.columns), len(one.columns | other.columns)
    least = AT_ONCE if one.spikes is None else SPIKES_AT_ONCE
    degrees = sorted((each.slowdown or 1.0) - 1 for each in (one, other))
    return both >= least * max(either, 1) and 0 < degrees[1] <= ALIKE * degrees[0]


def _units(job: Observed) -> list[_Unit]:
    """Hosts, replicas and holders of the same experts, by the ranks that were recorded of them; not
    the job as a whole."""
    window, recorded = job.window, frozenset(job.window.ranks)
    units = [_Unit(frozenset(host.ranks) & recorded, host.name) for host in window.job.hosts]
    units += [_Unit(ranks) for ranks in job.replicas]
    units += [_Unit(ranks & recorded, experts=True) for ranks in holders(window)]
    return sorted((one for one in units if one.ranks and one.ranks != recorded),
                  key=lambda one: -len(one.ranks))  # fmt: skip


def _by_cause(found: Sequence[Slowdown]) -> list[list[Slowdown]]:
    causes = dict.fromkeys(one.cause for one in found)
    return [[one for one in found if one.cause == cause] for cause in causes]


def _of_one_size(
    found: Sequence[Slowdown], size: Callable[[Slowdown], float]
) -> list[Slowdown]:  # fmt: skip
    """The findings with about as much excess as the largest: a host must not absorb its only slow
    rank."""
    most = max(map(size, found), default=0.0)
    return [one for one in found if size(one) * SWALLOWED >= most]


def _in_all(one: Slowdown) -> float:
    """The excess in all steps together: of ranks that are late in turns each is late about as often
    as the others, and a rank with one hiccup is not."""
    return 0.0 if one.suspect is None else one.suspect.whole_ns


def _common(window: Window, same: Sequence[Slowdown], unit: _Unit) -> Slowdown | None:
    """Findings joined into one; None if it explains nothing that these ranks belong together."""
    first = same[0]
    if unit.experts:
        return _preferred(window, same, unit) if first.cause == "load_imbalance" else None
    if not unit.host:
        return _more_samples(same) if first.cause == "compute" else None
    if len(same) < 2:
        return None
    return _sharing(same, unit.host) or _slow_host(same) or _join(same)


def _preferred(window: Window, same: Sequence[Slowdown], unit: _Unit) -> Slowdown | None:
    """All that hold the same experts, if most have more tokens: routing prefers these."""
    if len(same) < 2:
        return None
    one = _join(same, "hold the same experts")
    one = replace(one, ranks=tuple(sorted(unit.ranks)))
    return replace(one, supporting=(*same_experts(window, one), *one.supporting))


def _more_samples(same: Sequence[Slowdown]) -> Slowdown | None:
    """All ranks of a replica slow in their passes alone: it has more work to do."""
    if not all(one.extent == "passes" for one in same):
        return None
    clocks = [one.clock for one in same]
    if any(map(gpu.is_low, clocks)):
        return None
    if len(same) == 1 and clocks == [None]:
        return None
    one = _join(same)
    detail = "both passes take longer and the optimizer does not: more samples, not slower devices"
    evidence = Evidence("more-samples", detail, {"ranks": [int(rank) for rank in one.ranks]})
    return replace(one, cause="load_imbalance", supporting=(evidence, *one.supporting))


def _sharing(same: Sequence[Slowdown], host: str) -> Slowdown | None:
    """All devices of a host slow alike at their full clocks: something shares them."""
    clocks = [one.clock for one in same]
    slower = [(one.slowdown or 1.0) - 1 for one in same]
    if same[0].cause != "compute" or len(same) < SEVERAL or min(slower) <= 0:
        return None
    if any(one is None or gpu.is_low(one) for one in clocks):
        return None
    if any(one.extent != "everything" for one in same):
        return None
    if max(slower) > ALIKE * min(slower):
        return None
    one = _join(same)
    sure = min(one.score, INFERRED)
    detail = "all devices of the host are equally slow in all they run, at the clock of their peers"
    evidence = Evidence("shared-host", detail, {"devices": len(same)})
    return replace(
        one, cause="contention", score=sure, phase=None, shared_devices=True,
        devices=(Device("host", host, round(sure, 3)),),
        values={**one.values, "shared_devices": True}, supporting=(evidence, *one.supporting),
    )  # fmt: skip


def _slow_host(same: Sequence[Slowdown]) -> Slowdown | None:
    """All ranks of a host slow alike, also while they load data, and no device at a low clock: what
    they have in common is the host, as loading needs no device."""
    if same[0].cause != "compute" or len(same) < SEVERAL:
        return None
    if any(gpu.is_low(one.clock) or not _loads_longer(one) for one in same):
        return None
    one = _join(same)
    detail = "all ranks of the host take longer, also to load data, for which they need no device"
    evidence = Evidence("slow-host", detail, {"ranks": [int(rank) for rank in one.ranks]})
    return replace(one, cause="host", phase=None, supporting=(evidence, *one.supporting))


def _loads_longer(one: Slowdown) -> bool:
    return one.suspect is not None and any(map(loads, one.suspect.phases))


def _join(
    same: Sequence[Slowdown],
    why: str = "share a host or a replica and are slow for the same cause",
) -> Slowdown:
    """One finding for several ranks, described by the costliest, with their joint cost."""
    if len(same) == 1:
        return same[0]
    worst = max(same, key=lambda one: one.lost_fraction or 0.0)
    phases = {one.phase for one in same}
    ranks = tuple(sorted(rank for one in same for rank in one.ranks))
    known = [one.lost_fraction for one in same if one.lost_fraction is not None]
    whole = max(known, default=0.0) if worst.costs_alone else min(sum(known), 1.0)
    lost = whole if known else None
    return replace(
        worst, ranks=ranks, phase=worst.phase if len(phases) == 1 else None, lost_fraction=lost,
        values={**worst.values, "lost_fraction": lost},
        decisions=(*worst.decisions, _joined(ranks, why)),
    )  # fmt: skip


def _joined(ranks: tuple[int, ...], why: str) -> Decision:
    return Decision(
        "same-cause-together", True, float(len(ranks)), 2.0, f"{name_ranks(ranks)} {why}"
    )
