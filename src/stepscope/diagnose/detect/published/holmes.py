"""Holmes as published: irregular steps, abnormal operators, algorithm 1, and the likeliest device.

Fault: a GPU, adapter, link or switch that makes some steps longer.
Paper: Holmes (Yao et al., 2025), sections 3.1, 4.2 to 4.4 and appendix D. Symbols: delta ->
`DELTA`, T -> `WINDOW`, K -> `NAMED`; algorithm 1 -> `holmes_search`; R, H, I -> `holmes_devices`.
Runs by `--method holmes-published` only. A step is irregular if it takes DELTA times the average of
the window. Its operators are judged by the robust rule of `graph.abnormal`; by the paper's random
forest in `holmes_forest`. The pivot is the first recorded rank.
What is kept although it misleads: see `holmes_search` and `holmes_devices`; a degradation that
lasts half of the window raises the average itself and is irregular only above 1.22 times.
Cost: as `graph.comm_graph`; a search costs microseconds per operator that it visits.
Cannot see: a fault from the first step on; whatever is not on the way from the pivot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.detect.published.holmes_devices import (
    Irregularity,
    NamedDevice,
    index,
    irregularity_rate,
    ranked,
)
from stepscope.diagnose.detect.published.holmes_search import Abnormal, Root, Search
from stepscope.diagnose.finding import Cause, Decision, Device, Finding, Slowdown, SlowLink
from stepscope.diagnose.graph.abnormal import Usual
from stepscope.diagnose.graph.comm_graph import CommGraph, comm_graph, sampled
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.network.devices import Devices
from stepscope.diagnose.network.edges import Place
from stepscope.diagnose.network.topology import PathDevice, Topology
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import SCORE
from stepscope.window import Floats, Ints, Mask

DELTA = 1.1
"""Definition 1 and section 3.1. Paper."""
WINDOW = 100
"""T: the last iterations that count. Section 5.1. Paper."""
NAMED = 2
"""K. Section 5.1. Paper."""
PIVOT = 0
"""The monitored GPU: the row of the first rank, as in section 5.3. Paper."""
NO_DEVICES = ("fabric", "edge", "lane", "distance")
"""Kinds of `network.topology` that are no single device."""


class HolmesPublished:
    """The device that irregular steps go back to by algorithm 1, as published."""

    name = "holmes-published"
    needs = Needs("comm_ops.end_ns", ranks=2, also=("steps", "transfers"))

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Finding]:
        yield from located(job, by_rule, self.name)


def located(job: Observed, judge: Judge, name: str) -> Iterator[Finding]:
    """The device that irregular steps go back to, if this judge calls operators abnormal."""
    case = published_case(job, judge)
    if case is None:
        return
    found = [one for at in case.irregular.tolist() for one in case.irregularities(at)]
    if found:
        yield _finding(case, index(found), name)


@dataclass(frozen=True)
class Case:
    """The graph of a window, and which of its columns are irregular."""

    job: Observed
    graph: CommGraph
    irregular: Ints
    """Columns of the graph."""
    judge: Judge

    @cached_property
    def abnormal(self) -> Abnormal:
        return self.judge(self)

    @cached_property
    def regular(self) -> Ints:
        """The other columns of the graph."""
        return np.setdiff1d(np.arange(self.graph.columns.size), self.irregular)

    @cached_property
    def topology(self) -> Topology:
        return Topology(self.job.window)

    @cached_property
    def devices(self) -> Devices:
        return Devices(self.job.window)

    @cached_property
    def groups(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {one.id: (one.kind, one.ranks) for one in self.job.window.groups}

    def roots(self, at: int) -> set[Root]:
        """What algorithm 1 finds in one column of the graph."""
        return Search(self.graph, self.abnormal, at).run(PIVOT)

    def irregularities(self, at: int) -> Iterator[Irregularity]:
        """Every irregularity x of a step."""
        periods = self.job.line.job_period_ns[self.graph.columns]
        for root in sorted(self.roots(at)):
            series = self.graph.elapsed_ns[root.found_from]
            yield Irregularity(irregularity_rate(series, periods), self.used(root))

    def used(self, root: Root) -> list[NamedDevice]:
        """The GPU of a rank that computed too long, or what lies between an operator's members."""
        if root.cause == "compute":
            rank = int(self.job.line.ranks[self.graph.rank[root.entry]])
            return [NamedDevice("gpu", self.devices.gpu(rank) or f"rank {rank}", 0)]
        place = self.place(root.entry)
        hops = (device for device, _ in self.topology.hops(place) if device.kind not in NO_DEVICES)
        return [self._named(one) for one in hops]

    def _named(self, one: PathDevice) -> NamedDevice:
        """The device with C(d): 1 for an adapter and its link; for a switch the number of adapters
        below it, all of them if none is known."""
        inside = one.kind in ("nvlink", "pcie", "unknown")
        adapters = len(one.ranks) or len(self.job.line.ranks)
        below = 1 if one.kind == "nic" or "/" in one.name.partition("--")[0] else adapters
        return NamedDevice(one.kind, one.name, 0 if inside else below)

    def place(self, entry: int) -> Place:
        """The members of an entry's operator, as a place of `network.topology`."""
        graph, ranks = self.graph, self.job.line.ranks
        group = graph.group[entry] or ""
        kind, members = self.groups.get(group, ("", ()))
        if graph.p2p[entry]:
            members = (int(ranks[graph.rank[entry]]), int(graph.peer[entry]))
        return Place(group, kind, members, (), bool(graph.p2p[entry]))


Judge = Callable[[Case], Abnormal]
"""What says which operators of a case are abnormal."""


def by_rule(case: Case) -> Mask:
    """The robust rule, for the whole graph at once."""
    lasted = case.graph.elapsed_ns
    return Usual.of(lasted, case.job.line.typical_ns).abnormal(lasted)


def published_case(job: Observed, judge: Judge = by_rule) -> Case | None:
    """The last iterations of a job, if any of them is irregular and operators were recorded."""
    line = job.line
    columns = np.arange(max(line.warm_up, len(line.steps) - WINDOW), len(line.steps))
    periods = line.job_period_ns[columns]
    irregular = columns[irregular_steps(periods)]
    if not irregular.size:
        return None
    graph = comm_graph(
        job.window, line, sampled(job.window, line, irregular, np.setdiff1d(columns, irregular))
    )
    if graph is None:
        return None
    return Case(job, graph, np.flatnonzero(np.isin(graph.columns, irregular)), judge)


def irregular_steps(periods: Floats) -> Mask:
    """Definition 1: which steps take DELTA times the average of the window."""
    known = np.isfinite(periods)
    average = float(periods[known].mean()) if known.any() else 0.0
    return np.asarray(np.nan_to_num(periods) > DELTA * average)


def _finding(case: Case, found: dict[NamedDevice, float], name: str) -> Finding:
    """The likeliest device; the second of K is listed beside it."""
    best = ranked(found, NAMED)
    first, probability = best[0]
    line, columns = case.job.line, case.graph.columns[case.irregular]
    span = (int(columns[0]), int(columns[-1]) + 1)
    listed = " and ".join(f"{one.name} (I = {value:.3f})" for one, value in best)
    detail = f"{columns.size} of {case.graph.columns.size} steps are irregular; they go back to"
    detail += f" {listed}"
    rule = Decision(name, True, probability, None, detail)
    values = {"irregular": int(columns.size), "index": probability, "devices": len(found)}
    ranks = _behind(case, first)
    devices = tuple(_device(one, value) for one, value in best if one.type != "unknown")
    periods = line.job_period_ns
    usual = float(np.nanmedian(periods[line.warm_up :]))
    lost = float(np.nanmean(periods[columns])) - usual
    cause: Cause = "compute" if first.type == "gpu" else "network"
    common = {
        "devices": devices, "steps": line.span(*span), "time_ns": line.span_ns(*span),
        "score": SCORE, "values": values, "decisions": (rule,),
        "lost_ns": max(lost, 0.0), "lost_fraction": max(lost / (lost + usual), 0.0),
    }  # fmt: skip
    if cause == "compute":
        return Slowdown(name, cause, detail, ranks, columns=frozenset(columns.tolist()), **common)  # type: ignore[arg-type]
    return SlowLink(name, cause, detail, ranks, where=f"at {first.name}",
                    columns=tuple(columns.tolist()), **common)  # type: ignore[arg-type] # fmt: skip


def _device(one: NamedDevice, value: float) -> Device:
    return Device(one.type, one.name, round(min(max(value, 0.0), 1.0), 3))  # type: ignore[arg-type]


def _behind(case: Case, device: NamedDevice) -> tuple[int, ...]:
    """The ranks that alone use a GPU or an adapter; nobody for a switch."""
    known = case.devices
    if device.type == "gpu":
        named = [rank for rank in case.job.line.ranks.tolist()
                 if (known.gpu(rank) or f"rank {rank}") == device.name]  # fmt: skip
        return tuple(named)
    adapter = device.name.partition("--")[0]
    return tuple(rank for rank in case.job.line.ranks.tolist() if known.nic(rank) == adapter)
