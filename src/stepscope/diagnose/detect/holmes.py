"""Holmes, repaired: irregular steps, the ranks they go back to, and the device that explains most.

Fault: a GPU, host, adapter, link or switch that makes some steps longer, or all from some step on.
Paper: Holmes (Yao et al., 2025), sections 3.1, 4.2 to 4.4 and appendix D. Symbols: x -> `Origin`,
d -> `network.exposure` for what moves data, `_device_of` for what computes.
Where we differ: `graph.late_search` (the search), `network.exposure` (devices). A step is irregular
if it exceeds the *fast* level of the window by more than its noise, and is no planned pause; the
average includes what it should reveal. What a device is accused of must recur more often than
chance allows, or cost much.
Runs by `--method holmes` only; `holmes-published` has the rules as printed.
Cost: as `graph.comm_graph`, and 10 ms or so for each searched step.
Cannot see: a fault from the first step on; which adapter of a single slow ring it is; what happens
within operators that were not recorded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stepscope.diagnose.detect.planned_pauses import planned_steps
from stepscope.diagnose.finding import Decision, Device, Finding, Slowdown, SlowLink
from stepscope.diagnose.graph.comm_graph import CommGraph, comm_graph, sampled
from stepscope.diagnose.graph.late_search import LateSearch
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.network.comm_paths import CommPaths, Suspect, clear_ranks
from stepscope.diagnose.network.comm_places import CommPlaces
from stepscope.diagnose.network.topology import SUFFERS
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.chance import log_tail
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import FAST, LEAST_COST, LEAST_COST_ONCE, score
from stepscope.window import Floats, Ints, Mask

SIGMAS = 4.0
"""A step is irregular beyond so many standard deviations of regular steps. Statistics."""
LEAST_REGULAR = 4
"""Steps that show what is usual. Statistics."""
PIVOTS = 6
"""Monitored ranks, spread over the job; with six the paper finds all. Figure 14(c). Paper."""
LEAST_SHARE = 0.3
"""Of what a step took longer, a place must have caused this much. Our choice."""
FALSE_ALARMS = 1e-3
"""Share of jobs in which one place may be the origin that often by chance. Statistics."""
SEVERAL_SCORE = 0.6
"""If several ranks or devices are possible. Our judgement."""


class Holmes:
    """The device that irregular steps go back to, by the operators that ended late in them."""

    name = "holmes"
    needs = Needs("comm_ops.end_ns", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Finding]:
        case = irregular_case(job)
        if case is None:
            return
        yield from _slow_ranks(case, self.name)
        network = _slow_network(case, self.name)
        if network is not None:
            yield network


@dataclass(frozen=True)
class Origin:
    """What one irregular step goes back to."""

    at: int
    """Column of the graph."""
    row: int | None
    """A rank that computed too long; None: a transfer."""
    place: int | None
    charge_ns: float


@dataclass(frozen=True)
class Case:
    """The graph of a job, and its irregular columns."""

    job: Observed
    graph: CommGraph
    irregular: Ints
    """Columns of the graph."""
    usual_ns: float

    @cached_property
    def search(self) -> LateSearch:
        return LateSearch(self.graph, self.regular)

    @cached_property
    def regular(self) -> Mask:
        return ~np.isin(np.arange(self.graph.columns.size), self.irregular)

    @cached_property
    def places(self) -> CommPlaces:
        return CommPlaces(self.job.window, self.graph)

    @cached_property
    def pivots(self) -> list[int]:
        ranks = len(self.job.line.ranks)
        return sorted({int((at + 0.5) * ranks / PIVOTS) for at in range(PIVOTS)})

    def excess_ns(self, at: int) -> float:
        """By how much a step took longer than usual."""
        return float(self.job.line.job_period_ns[self.graph.columns[at]]) - self.usual_ns

    @cached_property
    def origins(self) -> list[Origin]:
        """The place where most of the lateness of each irregular step arose."""
        found = (self._origin(at) for at in self.irregular.tolist())
        return [one for one in found if one is not None]

    def _origin(self, at: int) -> Origin | None:
        charged = self.search.charges(at, self.pivots)
        places: Counter[int] = Counter()
        for entry, charge_ns in charged.operators.items():
            places[int(self.places.of_entry[entry])] += charge_ns
        ((row, by_rank),) = charged.ranks.most_common(1) or [(0, 0)]
        ((place, by_place),) = places.most_common(1) or [(0, 0)]
        if max(by_rank, by_place) < LEAST_SHARE * self.excess_ns(at):
            return None
        if by_rank >= by_place:
            return Origin(at, row, None, by_rank)
        return Origin(at, None, place, by_place)


def irregular_case(job: Observed) -> Case | None:
    """The irregular steps of a job and the graph of its operators; None where there are none."""
    line = job.line
    columns = np.arange(line.warm_up, len(line.steps))
    columns = columns[~np.isin(line.steps[columns], list(planned_steps(job)))]
    periods = line.job_period_ns[columns]
    fast = float(np.nanquantile(periods, FAST)) if np.isfinite(periods).any() else 0.0
    hit = irregular_steps(periods)
    if not hit.any() or (~hit).sum() < LEAST_REGULAR:
        return None
    chosen = sampled(job.window, line, columns[hit], columns[~hit])
    graph = comm_graph(job.window, line, chosen)
    if graph is None:
        return None
    irregular = np.flatnonzero(np.isin(graph.columns, columns[hit]))
    if graph.columns.size - irregular.size < LEAST_REGULAR:
        return None
    usual = stats.median(periods[~hit]) or fast
    return Case(job, graph, irregular, usual)


def irregular_steps(periods: Floats) -> Mask:
    """Steps beyond the noise of the fast ones, by at least what a verdict must cost."""
    if not np.isfinite(periods).any():
        return np.zeros(periods.size, np.bool_)
    fast = float(np.nanquantile(periods, FAST))
    below = periods[periods <= fast]
    noise = max(stats.step_noise(periods[None]), float(fast - below.min(initial=fast)) / 3)
    limit = fast + max(SIGMAS * min(noise, stats.sigma(periods)), LEAST_COST * fast)
    return np.asarray(np.nan_to_num(periods) > limit)


# ---- ranks ----


def _slow_ranks(case: Case, name: str) -> Iterator[Slowdown]:
    """The rank or host that most irregular steps go back to."""
    found = [one for one in case.origins if one.row is not None]
    ranks = Counter(int(one.row) for one in found if one.row is not None)
    if not ranks:
        return
    hosts: Counter[str] = Counter()
    for row, often in ranks.items():
        hosts[_host(case, row)] += often
    (row, often), *_ = ranks.most_common(1)
    (host, together), *_ = hosts.most_common(1)
    beside = [rank for rank in case.job.line.ranks.tolist()
              if case.job.window.host_of(rank) == host]  # fmt: skip
    whole = len(case.job.line.ranks)
    if host and log_ratio(together, whole, len(beside)) > log_ratio(often, whole, 1):
        hit = [one for one in found if one.row is not None and _host(case, one.row) == host]
        finding = _rank_finding(case, hit, tuple(beside), name)
    else:
        hit = [one for one in found if one.row == row]
        finding = _rank_finding(case, hit, (int(case.job.line.ranks[row]),), name)
    if _is_no_chance(case, hit, len(finding.ranks)):
        yield finding


def log_ratio(often: int, ranks: int, behind: int) -> float:
    """Log-likelihood ratio of a device with this many ranks behind it that is the origin this
    often.

    Exposure: if the device is at fault, each of its ranks is the last one as often as the others.
    """
    return often * math.log(SUFFERS * ranks / behind)


def _host(case: Case, row: int) -> str:
    return case.job.window.host_of(int(case.job.line.ranks[row])) or ""


def _is_no_chance(case: Case, hit: Sequence[Origin], behind: int) -> bool:
    """Whether these are the origin more often than by chance, or cost much, and whether that is
    enough."""
    trials, places = len(case.irregular), len(case.job.line.ranks)
    lost = sum(case.excess_ns(one.at) for one in hit)
    whole = float(np.nansum(case.job.line.job_period_ns[case.graph.columns]))
    if lost < LEAST_COST / 2 * whole or not hit:
        return False
    if len(hit) == 1:
        return lost >= LEAST_COST_ONCE * whole
    chance = min((behind + 1) / (places + 2), 0.5)
    return log_tail(len(hit), trials, chance) + math.log(places) < math.log(FALSE_ALARMS)


def _rank_finding(case: Case, hit: Sequence[Origin], ranks: tuple[int, ...], name: str) -> Slowdown:
    columns = case.graph.columns[[one.at for one in hit]]
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"the ranks of {_host(case, hit[0].row or 0)}"
    detail = f"{len(hit)} of {len(case.irregular)} irregular steps go back to work of {who}"
    charge = float(np.median([one.charge_ns for one in hit]))
    detail += f", which was {1e-6 * charge:.0f} ms late by itself"
    lasting = columns.size > len(case.graph.columns) / 4
    return Slowdown(
        name, "compute" if len(ranks) == 1 else "host", detail, ranks,
        slowdown=1 + charge / case.usual_ns,
        spikes=None if lasting else len(hit), of_steps=len(case.graph.columns),
        columns=frozenset(columns.tolist()), score=score(math.log1p(len(hit))),
        **_costs(case, hit, columns, name, detail),
    )  # fmt: skip


def _costs(
    case: Case, hit: Sequence[Origin], columns: Ints, name: str, detail: str
) -> dict[str, Any]:
    line, span = case.job.line, (int(columns.min()), int(columns.max()) + 1)
    excess = [case.excess_ns(one.at) for one in hit]
    periods = line.job_period_ns[columns]
    fraction = float(sum(excess) / max(np.nansum(periods), 1.0))
    return {
        "steps": line.span(*span), "time_ns": line.span_ns(*span),
        "lost_ns": float(np.mean(excess)), "lost_fraction": min(max(fraction, 0.0), 1.0),
        "values": {"irregular": len(case.irregular), "origins": len(hit)},
        "decisions": (Decision(name, True, len(hit), None, detail),),
    }  # fmt: skip


# ---- network ----


def _slow_network(case: Case, name: str) -> SlowLink | None:
    """The device, or else the group, whose transfers made steps irregular."""
    hit = [one for one in case.origins if one.place is not None]
    if not hit or not _is_no_chance_of_transfers(case, hit):
        return None
    columns = np.array([one.at for one in hit])
    columns = np.unique(np.concatenate((columns, _before(case.graph, columns))))
    slow, known = case.places.slow(case.search, columns)
    paths = CommPaths(case.job.window, case.places.places)
    suspects = paths.suspects(slow, known)
    often = Counter(one.place for one in hit)
    (most, _), *_ = often.most_common(1)
    assert most is not None
    return _network_finding(case, hit, most, suspects, case.places.ratio(case.search, most), name)


def _before(graph: CommGraph, columns: Ints) -> Ints:
    """The columns before these, in which lateness that was carried over began."""
    known = columns[columns > 0]
    return np.asarray(known[np.diff(graph.columns)[known - 1] == 1] - 1)


def _is_no_chance_of_transfers(case: Case, hit: Sequence[Origin]) -> bool:
    return _is_no_chance(case, hit, max(len(case.job.line.ranks) // 2, 1)) or (
        _is_no_chance(case, hit[:1], 1) if len(hit) == 1 else len(hit) > len(case.irregular) / 2
    )


def _network_finding(
    case: Case, hit: Sequence[Origin], most: int, suspects: Sequence[Suspect], times: float,
    name: str,
) -> SlowLink:  # fmt: skip
    place = case.places.places[most]
    columns = case.graph.columns[[one.at for one in hit]]
    ranks = clear_ranks(suspects, len(case.job.line.ranks))
    likely = ", ".join(f"{one.device.name} ({100 * one.probability:.0f} %, {one.slow:.0f} of"
                       f" {one.paths:.0f} paths slow)" for one in suspects[:3])  # fmt: skip
    detail = f"{len(hit)} of {len(case.irregular)} irregular steps go back to transfers, most to"
    detail += f" {place.group}" + (f"; suspects: {likely}" if suspects else "")
    devices = tuple(one for one in map(_device, suspects) if one is not None)
    sure = bool(ranks) or bool(suspects and suspects[0].device.kind == "switch")
    where = f"through {suspects[0].device.name}" if sure else f"in {place.group}"
    return SlowLink(
        name, "network", detail, ranks, group=None if sure else place.group, devices=devices,
        where=f"{where} than before", columns=tuple(columns.tolist()), slowdown=times,
        score=score(math.log1p(len(hit))) if sure else SEVERAL_SCORE,
        **_costs(case, hit, columns, name, detail),
    )  # fmt: skip


def _device(one: Suspect) -> Device | None:
    kinds: dict[str, Any] = {"nic": "nic", "link": "link", "switch": "switch"}
    kind, device = kinds.get(one.device.kind), one.device
    return None if kind is None else Device(kind, device.name, round(one.probability, 3))
