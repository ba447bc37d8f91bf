"""EROICA's localisation in a robust form: functions that a few ranks execute unlike their peers.

Fault: slow devices, a slow file, a lock, more work on a few ranks; slow ends of links.
Paper: EROICA (2026), section 4.3; as printed it is `published.eroica`.
What differs: see `odd_patterns` (own work) and `slow_ring` (links). Ranks that have a verdict by
their step times are explained by patterns and not accused again (`explain.pattern`).
Cost: a few passes over functions and ranks.
Cannot see: what all ranks do alike (`common_patterns`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.detect.hosts.host_time import least_cost, most_lost
from stepscope.diagnose.detect.profiled.odd_patterns import (
    LOWER,
    Odd,
    does_more,
    named,
    odd_functions,
)
from stepscope.diagnose.detect.profiled.pattern_waste import windows_now
from stepscope.diagnose.detect.profiled.slow_ring import SlowEnd, slow_ends
from stepscope.diagnose.finding import Cause, Decision, Device, Finding, Slowdown, SlowLink
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.intervals import around
from stepscope.diagnose.numeric.peers import relative
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import HALF, score
from stepscope.diagnose.views.breakdown import copies_to_host
from stepscope.diagnose.views.patterns import Function, Patterns
from stepscope.diagnose.views.unnamed import KERNELS as KERNEL_TIME
from stepscope.diagnose.words.advice import name_ranks
from stepscope.diagnose.words.numbers import percent
from stepscope.trace import DATA_LOAD
from stepscope.window import Ints

KERNELS = 3
"""Kernels that a verdict lists. Our choice."""
AROUND, LEAST_AROUND = 50, 10
"""Steps before and after a window that must show it too, and how many must be known. Our choice."""
SHOWS = 0.25
"""Part of what a function takes longer that own times must show around the window. Our choice."""
ERRORS = 3.0
"""Standard errors by which they must do so. Statistics."""
BESIDE_HOSTS = ("kernel", "copy")
"""Kinds of functions that run while the host goes on, so that its own times do not contain them."""
LINK_SIGMAS = 1.0
"""How far beyond its limit a slow end of a link counts: the limits are wide. Our choice."""


class BehaviourPatterns:
    """Functions, or links, that a few ranks use unlike their peers in profiled steps."""

    name = "behaviour-patterns"
    needs = Needs("patterns", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Finding]:
        yield from _slow_ranks(job, so_far.blamed)
        yield from _slow_links(job, so_far.blamed)


@dataclass(frozen=True)
class _Observation:
    """What one rank does longer than its peers in one window."""

    window: Patterns
    odd: tuple[Odd, ...]
    """Most first."""
    group: Ints

    @property
    def function(self) -> Function:
        return self.window.functions[self.odd[0].function]

    @property
    def loss(self) -> float:
        return max(min(self.odd[0].whole, sum(one.excess for one in self.odd)), 0.0)


def _slow_ranks(job: Observed, blamed: frozenset[int]) -> Iterator[Slowdown]:
    groups = job.groups(None)
    observed: dict[tuple[Cause, str], list[_Observation]] = defaultdict(list)
    windows = windows_now(job)
    for window in windows:
        for one in _by_rank(window, odd_functions(window, groups, len(windows)), groups):
            if _saves(one):
                continue
            if int(job.line.ranks[one.odd[0].row]) not in blamed and _shows_around(job, one):
                observed[cause_of(job, one), one.function.name].append(one)
    for (cause, _), same in observed.items():
        if lasting := _lasting(same, windows):
            yield _found(job, cause, lasting)


def _saves(observed: _Observation) -> bool:
    """Whether it copies memory of its device to its host and no peer does: no copy is slow then."""
    return copies_to_host(observed.function.name) and not observed.odd[0].usual


def _shows_around(job: Observed, observed: _Observation) -> bool:
    """Whether own times before or after the window show it, too; in it, where all was profiled.

    What is in profiled steps alone is a single stall, or the profiler's: an operator on a host may
    be held up for a second while its profiler ends. Own times of hosts do not contain kernels,
    unless they are known by kernels alone, and where they are not known nothing is lost. In a trace
    all steps were profiled: there most of them show what is no single stall, or hosts' own times
    what delays a host, whose functions are seen where its device waits for them, however long they
    take.
    """
    by_kernels = KERNEL_TIME in job.own.phases
    is_beside = observed.function.kind in BESIDE_HOSTS and not by_kernels
    if is_beside or observed.window.steps is None or job.own.hidden:
        return True
    if (most := _most_lost(job, observed)) is not None:
        part = np.flatnonzero(job.line.within(observed.window.steps))
        least = least_cost(job, observed.odd[0].row, part)
        return observed.loss >= least and most >= SHOWS * observed.loss
    first, last = observed.window.steps
    steps, row = job.line.steps, observed.odd[0].row
    before = (steps >= first - AROUND) & (steps < first)
    after = (steps > last) & (steps <= last + AROUND)
    others = job.total[observed.group[observed.group != row]]
    excess = job.total[row] - stats.column_median(others)
    within = (steps >= first) & (steps <= last)
    sides = [side for part in ((before, after) if (before | after).any() else (within,))
             if (side := excess[part & np.isfinite(excess)]).size >= LEAST_AROUND]  # fmt: skip
    least = SHOWS * observed.loss * job.line.typical_ns
    if job.line.is_trace or by_kernels:
        known = excess[within & np.isfinite(excess)]
        return not known.size or float(np.mean(known >= least)) >= HALF
    return not sides or any(
        side.mean() >= max(least, ERRORS * side.std() / np.sqrt(side.size)) for side in sides
    )


def _most_lost(job: Observed, observed: _Observation) -> float | None:
    """What a function of a host costs at most: how much longer that host works on these steps."""
    if _on_device(observed) or observed.window.steps is None:
        return None
    part = np.flatnonzero(job.line.within(observed.window.steps))
    return most_lost(job, observed.odd[0].row, part, job.line.job_period_ns[part])


def _on_device(observed: _Observation) -> bool:
    """Whether a device runs the function, or the host in place of one."""
    function = observed.function
    return function.kind == "copy" or observed.window.on_device(function)


def _lasting(same: Sequence[_Observation], windows: Sequence[Patterns]) -> list[_Observation]:
    """The observations of ranks that stand out in at least half of the windows in which they were
    profiled."""
    times = Counter(one.odd[0].row for one in same)
    profiled = {row: sum(row in window.rows for window in windows) for row in times}
    return [one for one in same
            if times[one.odd[0].row] >= HALF * profiled[one.odd[0].row]]  # fmt: skip


def _by_rank(
    window: Patterns, odd: Sequence[Odd], groups: Sequence[Ints]
) -> Iterator[_Observation]:
    rows: dict[int, list[Odd]] = defaultdict(list)
    for one in odd:
        rows[one.row].append(one)
    for row, some in rows.items():
        group = next(group for group in groups if row in group)
        yield _Observation(window, tuple(sorted(some, key=lambda one: -one.excess)), group)


def cause_of(job: Observed, observed: _Observation) -> Cause:
    """The cause by what kind of function takes longer, and in which phase."""
    row = observed.odd[0].row
    cause = cause_by_kind(observed.window, observed.odd[0].function, row, observed.group)
    return "data_loading" if cause == "host" and _loads_longer(job, row, observed) else cause


def _loads_longer(job: Observed, row: int, observed: _Observation) -> bool:
    """Whether phases show that most of the excess is data loading, which the function alone does
    not show."""
    if DATA_LOAD not in job.own.phases or not len(job.line.steps):
        return False
    own = job.own.of(DATA_LOAD)[:, job.line.warm_up :]
    spent = np.nansum(own, axis=1) / max(own.shape[1], 1)
    others = observed.group[observed.group != row]
    excess_ns = float(spent[row]) - stats.median(spent[others])
    return excess_ns >= HALF * observed.odd[0].excess * job.line.typical_ns


def cause_by_kind(window: Patterns, at: int, row: int, group: Ints) -> Cause:
    function = window.functions[at]
    if function.loads:
        return "data_loading"
    if does_more(window, at, row, group):
        return "load_imbalance"
    if function.compiles:
        return "jit_compile"
    if function.kind == "copy":
        return "memory_copy"
    if window.on_device(function):
        return "compute"
    return "gc" if function.collects else "host"


def _found(job: Observed, cause: Cause, same: Sequence[_Observation]) -> Slowdown:
    """One finding about all ranks that the same function holds up."""
    worst = max(same, key=lambda one: one.loss)
    first, function = worst.odd[0], worst.function
    ranks = tuple(sorted({int(job.line.ranks[one.odd[0].row]) for one in same}))
    of_device = _on_device(worst)
    kernels = tuple(dict.fromkeys(worst.window.functions[one.function].name for one in worst.odd))
    windows = {id(one.window): one.window for one in same}
    times = first.beta / max(first.usual, 0.01)
    lost = min(worst.loss, 1.0 if (most := _most_lost(job, worst)) is None else most)
    margin = min(one.odd[0].z - one.odd[0].needed for one in same)
    detail = evidence(worst.window, first, worst.group, len(ranks))
    above = f"{named(function)}: {first.z:.1f} standard deviations above its peers"
    decision = Decision("unlike-peers", True, first.z, first.needed, above)
    return Slowdown(
        BehaviourPatterns.name, cause, detail, ranks,
        function=None if of_device else function.frame,
        kernels=kernels[:KERNELS] if of_device else (),
        steps=around(one.steps for one in windows.values()),
        time_ns=around(one.time_ns for one in windows.values()),
        slowdown=times, lost_fraction=lost, score=score(margin),
        says=_summary(ranks, cause, function, first, worst), decisions=(decision,),
        values={"share": first.beta, "peers": first.usual, "z": first.z,
                "windows": len(windows), "of_windows": len(windows_now(job))},
    )  # fmt: skip


def evidence(window: Patterns, odd: Odd, group: Ints, ranks: int = 1) -> str:
    """What a person can check: shares of the step, use of the resource, and calls."""
    function = window.functions[odd.function]
    where = "on the slowest of them" if ranks > 1 else "on it"
    text = (
        f"{named(function)} takes {percent(odd.beta)} of the profiled steps {where}, "
        f"{percent(odd.usual)} on its peers"
    )
    use = relative(window.mu[odd.function], odd.row, group)
    if use is not None and function.resource:
        mu = float(window.mu[odd.function, odd.row])
        text += f"; it uses {percent(mu)} of {RESOURCES.get(function.resource, function.resource)}"
        if use <= LOWER:
            text += f", {percent(1 - use)} less than its peers"
        elif use < 1 / LOWER:
            text += ", as its peers do"
    if does_more(window, odd.function, odd.row, group):
        text += "; it is called so much more often"
    return text


RESOURCES = {
    "cpu": "a core", "sm": "the device's clock or multiprocessors", "nvlink": "NVLink",
    "pcie": "PCIe", "nic": "the adapter",
}  # fmt: skip


def _summary(
    ranks: tuple[int, ...], cause: Cause, function: Function, odd: Odd, observed: _Observation
) -> str:
    verb, its = ("spend", "their") if len(ranks) > 1 else ("spends", "its")
    text = f"{name_ranks(ranks)} {verb} {percent(odd.beta)} of {its} steps in {function.frame}, "
    text += f"{its} peers {percent(odd.usual)}"
    if cause == "load_imbalance":
        return text + ": more work to do"
    use = relative(observed.window.mu[odd.function], odd.row, observed.group)
    if cause == "compute" and function.resource == "sm" and use is not None and use <= LOWER:
        text += f": {its} device runs at {percent(use)} of the others' speed"
    return text


def _slow_links(job: Observed, blamed: frozenset[int]) -> Iterator[SlowLink]:
    """The slow end that costs most of each kind, in any window."""
    found: dict[tuple[int, ...], tuple[Patterns, SlowEnd]] = {}
    windows = windows_now(job)
    ends = [(window, replace(end, rows=later_ends(job, end.rows)))
            for window in windows for end in slow_ends(window)]  # fmt: skip
    times = Counter(row for window, rows in {(id(window), end.rows) for window, end in ends}
                    for row in set(rows))  # fmt: skip
    for window, whole in ends:
        rows = tuple(row for row in whole.rows if times[row] >= HALF * len(windows))
        if rows:
            end = replace(whole, rows=rows)
            known = found.get(end.rows)
            if known is None or known[1].loss < end.loss:
                found[end.rows] = (window, end)
    named_rows: set[int] = set()
    for rows, (window, end) in sorted(found.items(), key=lambda one: -one[1][1].loss):
        ranks = job.line.ranks_of(rows)
        is_known = not end.detour and bool(blamed.intersection(ranks))
        if not named_rows.intersection(rows) and not is_known:
            named_rows.update(rows)
            yield _link(job, ranks, window, end)


def later_ends(job: Observed, rows: tuple[int, ...]) -> tuple[int, ...]:
    """Of two neighbours in a ring, the later one.

    Into a slow adapter its neighbour sends as steadily as it sends itself. NCCL's rings lead from
    host to host, at the same place in each.
    """
    place = {rank: (at, host.ranks.index(rank)) for at, host in enumerate(job.window.job.hosts)
             for rank in host.ranks}  # fmt: skip
    hosts = max(len(job.window.job.hosts), 1)
    at = {row: place.get(int(job.line.ranks[row]), (-1, row)) for row in rows}
    ends = [row for row in rows
            if ((at[row][0] + 1) % hosts, at[row][1]) not in at.values()]  # fmt: skip
    return tuple(ends) or rows


def _link(job: Observed, ranks: tuple[int, ...], window: Patterns, end: SlowEnd) -> SlowLink:
    function = window.functions[end.function]
    detail = f"{function.name} on {name_ranks(ranks)}: {end.detail}"
    where = f"in {function.name} than on other links"
    mu = [float(window.mu[end.function, row]) for row in end.rows]
    return SlowLink(
        BehaviourPatterns.name, "network", detail, ranks, kernels=(function.name,),
        steps=window.steps, time_ns=window.time_ns, slowdown=end.times,
        lost_fraction=end.loss, score=score(LINK_SIGMAS), where=where,
        devices=_devices(job, ranks, function, end),
        values={"mu": mu, "median_mu": float(np.nanmedian(window.mu[end.function]))},
    )  # fmt: skip


def _devices(
    job: Observed, ranks: tuple[int, ...], function: Function, end: SlowEnd
) -> tuple[Device, ...]:
    """The NVLink or the adapter of each rank, where it is clear which one is its own."""
    sure, found = round(score(LINK_SIGMAS), 3), []
    for host in job.window.job.hosts:
        for rank in sorted(set(ranks) & set(host.ranks)):
            at = host.ranks.index(rank)
            if end.detour or function.resource == "nvlink":
                found.append(Device("nvlink", f"{host.name}/nvlink", sure))
            elif len(host.nics) == len(host.ranks):
                found.append(Device("nic", f"{host.name}/{host.nics[at]}", sure))
    return tuple(dict.fromkeys(found))
