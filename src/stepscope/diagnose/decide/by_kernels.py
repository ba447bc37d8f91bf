"""Slow ranks and slow groups, found by the times of their kernels alone.

Fault: a device that computes slowly, or a group whose data moves slowly, in jobs that recorded no
phases of the passes, or not when operators end.
Paper: ARGUS (2026), section 6.2 (level 3), and section 9.2 (case 2) for groups.
What differs: own times that cover the passes of a step contain all that kernels take and show which
rank is slow, so `argus-l3` is silent there. Elsewhere the total time that a rank's kernels compute
in a window is judged as `slow_kernel` judges one kernel. Own times contain no communication, so
that without the ends of operators only kernels show which group is slow (`slow_group_kernels`).
Cost: one pass over `kernels` or `kernel_summaries`, and one sort per group and window.
Cannot see: a fault of most ranks of a group, and what is slow for less than a window.

Groups whose communication kernels take longer than before, and not than equal groups', are named
too; and ranks that all others waited for at times (where own times cover the passes, `transient`
finds such a rank in the very step).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

import numpy as np

from stepscope.diagnose.account.model import Model
from stepscope.diagnose.decide import rules
from stepscope.diagnose.decide.rules import suspected
from stepscope.diagnose.detect.kernels.slow_group_kernels import (
    RATIO,
    Shifted,
    groups_of,
    shifted_groups,
)
from stepscope.diagnose.detect.kernels.slow_kernel import EFFECT, LEAST_WINDOWS, Slower, slower
from stepscope.diagnose.detect.kernels.stall import Stalled, stalled
from stepscope.diagnose.detect.links.group_since import Since, slower_since
from stepscope.diagnose.detect.links.slow_exchange import slower_by_kernels
from stepscope.diagnose.detect.ranks.straggler_brief import PERSISTENCE
from stepscope.diagnose.explain import gpu
from stepscope.diagnose.explain.kernels import costliest, evidence_of, group_of, longer_kernels
from stepscope.diagnose.explain.passes import TOUCHED, UNTOUCHED
from stepscope.diagnose.explain.tokens import Part, exceeds, more_for_experts
from stepscope.diagnose.finding import Cause, Decision, Extent, Slowdown, SlowLink, Span, Value
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import (
    HALF,
    LEAST_COST,
    LEAST_COST_ONCE,
    SCORE,
    SUSPECT_SCORE,
    score,
)
from stepscope.diagnose.views.breakdown import is_communicating, is_computing
from stepscope.diagnose.views.kernel_phases import optimizes
from stepscope.diagnose.views.kernel_times import KernelTimes, Recorded
from stepscope.diagnose.views.unnamed import GAPS, KERNELS, OUTSIDE
from stepscope.diagnose.words.advice import name_ranks
from stepscope.diagnose.words.numbers import time_apart
from stepscope.trace import DATA_LOAD, OPTIMIZER
from stepscope.window import NULL, Floats, Ints

BESIDE_PASSES = (DATA_LOAD, OPTIMIZER, OUTSIDE, GAPS)
"""Phases outside of the passes."""
CUT = 0.5
"""Of the usual length: a last window below it is cut short. Our simulator."""
METHOD = "stall"


class KernelStragglers:
    """Ranks whose computing kernels take longer than their peers', without recorded passes."""

    name = "argus-l3"
    needs = Needs("kernels|kernel_summaries", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        known = None if _covered(job) else job.kernels
        if known is not None:
            yield from _slow_ranks(job, known, so_far.blamed)


class SlowGroupKernels:
    """Groups whose communication kernels take longer than those of equal groups."""

    name = "slow-group-kernels"
    needs = Needs("kernels|kernel_summaries", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[SlowLink]:
        known = None if _ends_known(job) else job.kernels
        if known is None:
            return
        slow = _slow_groups(job, known, so_far.blamed)
        yield from (_group_finding(job, known, one) for one in slow)
        if not slow:
            found = [*slow_since(job, self.name, so_far.blamed)]
            yield from found or slower_by_kernels(job, self.name)


class KernelStalls:
    """Ranks that stall for seconds while all others wait, found by the longest kernels alone."""

    name = "stall"
    needs = Needs("kernel_summaries.max_ns|kernels", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        known = None if _covered(job) else job.kernels
        if known is not None:
            yield from stalls(job, known, so_far.blamed)


def _covered(job: Observed) -> bool:
    """Whether own times already show what kernels take.

    Of a single step they do not: a moment's delay looks the same there, while each kernel has run
    many times.
    """
    return not job.line.is_single_step and bool(set(job.own.phases) - {*BESIDE_PASSES, KERNELS})


def _ends_known(job: Observed) -> bool:
    """Whether the ends of most operators were recorded, from which `slow_link` finds more.

    On a GPU, hosts see only the ends of the few operators that run on the CPU.
    """
    comm = job.window.table("comm_ops")
    if comm is None or not comm.has("end_ns"):
        return False
    return float((comm.ints("end_ns") != NULL).mean()) > HALF


def _slow_ranks(job: Observed, known: Recorded, named: Collection[int]) -> list[Slowdown]:
    spent = known.spent_ns(is_computing)
    found = [_of_rank(job, known, one) for one in slower(spent, job.groups(None), known.ranks)
             if int(job.line.ranks[one.row]) not in named
             and _in_single_steps(job, known, one)]  # fmt: skip
    if job.line.is_single_step:
        return [one if _is_several(one) else suspected(one)
                for one in found]  # fmt: skip
    return [one for one in found if _is_several(one)]


def _in_single_steps(job: Observed, known: Recorded, one: Slower) -> bool:
    """Whether most single steps show half the effect, where they are known: one long step among
    few makes a window long, and is a moment."""
    if not known.columns.size or KERNELS not in job.own.phases or job.line.is_single_step:
        return True
    first, stop = _columns(job, known, one)
    excess = job.excess_of(KERNELS, one.row)[first:stop]
    own = job.own.of(KERNELS)[one.row, first:stop]
    high = excess > math.expm1(one.effect / 2) * (own - excess)
    return bool(high[np.isfinite(excess)].mean() >= PERSISTENCE)


def _is_several(finding: Slowdown) -> bool:
    """Whether it lasts, or several kernels show it: a slow device is slow in all it runs."""
    return len(finding.kernels) > 1 or len(finding.columns) >= LEAST_WINDOWS


def _of_rank(job: Observed, known: Recorded, one: Slower) -> Slowdown:
    windows, group = np.arange(one.first, one.stop), group_of(job, one.row, None)
    found = longer_kernels(known, group, one.row, windows, is_computing)
    excess_ns = float(np.nansum(one.usual)) * math.expm1(one.effect)
    lengthened = sum(kernel.lost_ns for kernel in found) >= HALF * excess_ns
    cause = _cause(job, known, group, one) if lengthened else "load_imbalance"
    first, stop = _columns(job, known, one)
    lost_ns = _lost_ns(job, known, one, excess_ns)
    lost_fraction = min(lost_ns / float(known.length_ns[windows].sum()), 1.0)
    least = LEAST_COST if windows.size >= LEAST_WINDOWS else LEAST_COST_ONCE
    extent, clock = (
        _extent(known, group, one.row, windows),
        gpu.relative_clock(job, one.row, first, stop),
    )
    values: dict[str, Value] = {
        "windows": one.stop - one.first, "effect": one.effect, "z": one.z, "z_needed": one.needed,
        "excess_ns": excess_ns, "lost_fraction": lost_fraction, "least_fraction": least,
        "slow_in": extent, "clock": clock,
    }  # fmt: skip
    detail = (f"its kernels take {math.exp(one.effect):.2f} times as long per minute as its "
              f"peers' (z {one.z:.1f}, noise reaches {one.needed:.1f})")  # fmt: skip
    return Slowdown(
        KernelStragglers.name, cause, detail, (int(job.line.ranks[one.row]),),
        kernels=tuple(dict.fromkeys(one.kernel for one in costliest(found))),
        steps=job.line.span(first, stop) if stop > first else None,
        time_ns=_time(job, known, one), slowdown=math.exp(one.effect), lost_ns=excess_ns,
        lost_fraction=lost_fraction, least_fraction=least, score=_sure(one), values=values,
        supporting=(evidence_of(found),) if found else (), clock=clock, extent=extent,
        columns=frozenset(windows.tolist()), costs_alone=True, has_onset=one.first > 0,
        decisions=(Decision(rules.OWN_TIME.name, True, one.z, one.needed, detail),),
    )  # fmt: skip


def _lost_ns(job: Observed, known: Recorded, one: Slower, excess_ns: float) -> float:
    """What a slow rank costs in all: its excess, less what waits in the bubbles of a pipeline of
    which it is known how often stages take turns."""
    model = Model.of(job)
    if not model.staged or model.microbatches <= 1:
        return excess_ns
    spent = known.spent_ns(is_computing)[:, one.first : one.stop]
    healed = spent.copy()
    healed[one.row] = np.fmin(spent[one.row], one.usual)
    return min(excess_ns, float(np.sum(model.step_ns(spent) - model.step_ns(healed))))


def _sure(one: Slower) -> float:
    return score(one.z - one.needed)


def _time(job: Observed, known: Recorded, one: Slower) -> Span:
    if known.columns.size:
        return job.line.span_ns(*_columns(job, known, one))
    last = one.stop - 1
    return int(known.begins_ns[one.first]), int(known.begins_ns[last] + known.length_ns[last])


def _columns(job: Observed, known: Recorded, one: Slower) -> Span:
    """The steps of a stretch of windows; none where there are no steps."""
    if not len(job.line.steps):
        return 0, 0
    if known.columns.size:
        return int(known.columns[one.first]), int(known.columns[one.stop])
    begin, end = _time(job, known, one)
    first, last = job.line.column_at(np.array([begin, end - 1])).tolist()
    return max(first, 0), max(first, last, 0) + 1


def _cause(job: Observed, known: Recorded, group: Ints, one: Slower) -> Cause:
    """The cause of longer executions; those of experts alone may mean more tokens."""
    windows = np.arange(one.first, one.stop)
    parts = _parts(known, group, one.row, windows)
    experts = more_for_experts(parts)
    if experts is None:
        return "compute"
    times = sum((_spent(each, windows) for each in known if each.kernel == experts),
                np.zeros(known.ranks))  # fmt: skip
    needed = exceeds(job, one.row, times, parts[experts].usual_ns)
    return "compute" if needed else "load_imbalance"


def _parts(known: Recorded, group: Ints, row: int, windows: Ints) -> dict[str, Part]:
    """What a rank and its peers spend in each computing kernel."""
    parts: dict[str, Part] = {}
    for times in known:
        if is_computing(times.kernel):
            spent = _spent(times, windows)
            usual = stats.median(spent[group[group != row]])
            before = parts.get(times.kernel, Part(0.0, 0.0))
            parts[times.kernel] = Part(before.own_ns + spent[row], before.usual_ns + usual)
    return {name: part for name, part in parts.items() if part.usual_ns > 0}


def _spent(times: KernelTimes, windows: Ints) -> Floats:
    return np.asarray(np.nan_to_num(times.count * times.typical_ns)[:, windows].sum(axis=1))


def _extent(known: Recorded, group: Ints, row: int, windows: Ints) -> Extent:
    """As `passes.extent`, by the kernels of the optimizer and all others."""
    parts = _parts(known, group, row, windows)
    rest = {name for name in parts if optimizes(name)}
    ratios = [sum(parts[name].own_ns for name in some) / sum(parts[name].usual_ns for name in some)
              for some in (parts.keys() - rest, rest) if some]  # fmt: skip
    if len(ratios) < 2 or ratios[0] <= 1 + EFFECT:
        return "some"
    touched = (ratios[1] - 1) / (ratios[0] - 1)
    return "everything" if touched >= TOUCHED else "passes" if touched <= UNTOUCHED else "some"


def _slow_groups(job: Observed, known: Recorded, guilty: Collection[int]) -> list[Shifted]:
    """Groups whose data moves slower, except those with a slow member.

    Slow members make each other wait, so no member of such a group shows how long its data moves.
    """
    lanes = [times for times in known if is_communicating(times.kernel)]
    slow = set(np.flatnonzero(np.isin(job.line.ranks, list(guilty))).tolist())
    return [one for one in shifted_groups(lanes, groups_of(job.window), _whole(known))
            if slow.isdisjoint(one.members.rows.tolist())]  # fmt: skip


def _whole(known: Recorded) -> int:
    """The number of windows, without a last one that is cut short."""
    usual = known.length_ns[:-1]
    cut = usual.size > 0 and known.length_ns[-1] < CUT * float(np.median(usual))
    return known.windows - bool(cut)


def _group_finding(job: Observed, known: Recorded, one: Shifted) -> SlowLink:
    length = float(known.length_ns[one.slower.first : one.slower.stop].sum())
    ranks = job.line.ranks_of(one.members.rows)
    first, stop = _columns(job, known, one.slower)
    detail = (
        f"even the member of {one.members.group} that waits least takes {one.ratio:.2f} times "
        f"as long in {one.kernels[0]} as in equal groups (z {one.slower.z:.1f}, noise reaches "
        f"{one.slower.needed:.1f}), and all other ranks wait for it in {one.waiting}"
    )
    where = f"in {one.members.group} than in equal groups"
    lost_fraction, victims = min(one.waited_ns / length, 1.0), known.ranks - len(ranks)
    values: dict[str, Value] = {
        "where": where, "ratio": one.ratio, "z": one.slower.z, "z_needed": one.slower.needed,
        "waited_ns": one.waited_ns, "members": [int(rank) for rank in ranks],
        "waiting": one.waiting, "victims": victims, "lost_fraction": lost_fraction,
    }  # fmt: skip
    return SlowLink(
        SlowGroupKernels.name, "network", detail, group=one.members.group, kernels=one.kernels,
        steps=job.line.span(first, stop) if stop > first else None,
        time_ns=_time(job, known, one.slower), slowdown=one.ratio, lost_ns=one.waited_ns,
        lost_fraction=lost_fraction, where=where, victims=victims, score=_sure(one.slower),
        values=values,
    )  # fmt: skip


def slow_since(job: Observed, method: str, named: Collection[int]) -> Iterator[SlowLink]:
    """The group that moves data slower than before, unless a rank that has a verdict is in it."""
    found = [one for one in slower_since(job) if set(named).isdisjoint(one.group.ranks)]
    if found:
        yield _of_the_past(job, method, found[0])


def _of_the_past(job: Observed, method: str, one: Since) -> SlowLink:
    line, stop = job.line, len(job.line.steps)
    period = line.job_period_ns
    usual, before = stats.median(period[one.split :]), stats.median(period[: one.split])
    lost_ns = max(min(one.rise_ns, usual - before), 0.0)
    lost_fraction = lost_ns / max(usual, 1.0)
    where = f"in {one.group.id} than before"
    detail = (
        f"even the member of {one.group.id} that waits least takes {one.ratio:.2f} times as long "
        f"in {one.kernel} as before step {line.steps[one.split]}, which equal groups do not"
    )
    return SlowLink(
        method, "network", detail, group=one.group.id, kernels=(one.kernel,),
        steps=line.span(one.split, stop), time_ns=line.span_ns(one.split, stop),
        slowdown=one.ratio, lost_ns=lost_ns, lost_fraction=lost_fraction, where=where,
        columns=tuple(range(one.split, stop)), victims=len(line.ranks),
        score=SCORE if one.is_sure else SUSPECT_SCORE,  # an unrecorded member may be late
        values={"where": where, "ratio": one.ratio, "lost_ns": lost_ns,
                "members": list(one.group.ranks), "lost_fraction": lost_fraction},
        decisions=(Decision(method, True, one.ratio, RATIO, detail),),
    )  # fmt: skip


def stalls(job: Observed, known: Recorded, named: Collection[int]) -> list[Slowdown]:
    """Ranks that stalled, except those that are already named."""
    longest = _longest(known)
    if longest is None:
        return []
    hosts = [rows for rows in job.host_rows if rows.size > 1]
    found = [_of_stall(job, known, one) for one in stalled(longest, hosts)]
    return [one for one in found if set(named).isdisjoint(one.ranks)]


def _longest(known: Recorded) -> Floats | None:
    """`[rank, window]`: the longest communication kernel; None where none was recorded."""
    kept = [times.longest_ns for times in known if is_communicating(times.kernel)]
    recorded = [one for one in kept if one is not None]
    return np.fmax.reduce(recorded) if recorded else None


def _of_stall(job: Observed, known: Recorded, one: Stalled) -> Slowdown:
    windows = np.array(one.windows)
    ranks = job.line.ranks_of(one.rows)
    kernels = tuple(dict.fromkeys(_own(known, one)))
    lost_ns = float(sum(one.waited_ns))
    often = "" if known.windows == 1 else f", in {windows.size} of {known.windows} windows"
    did = f"one execution of {kernels[0]} took that long" if kernels else "its device was idle"
    detail = f"all others waited {time_apart(int(max(one.waited_ns)))} for it{often}; {did}"
    lost_fraction = min(lost_ns / float(known.length_ns.sum()), 1.0)
    # a second stall hits the same rank by chance in one job of as many as there are ranks
    least = LEAST_COST if windows.size > 1 else LEAST_COST_ONCE
    values: dict[str, Value] = {
        "waited_ns": max(one.waited_ns), "windows": int(windows.size),
        "lost_fraction": lost_fraction, "least_fraction": least,
    }  # fmt: skip
    last = int(windows[-1])
    verb = "stall" if len(ranks) > 1 else "stalls"
    return Slowdown(
        METHOD, "compute" if kernels else "host", detail, ranks, kernels=kernels,
        time_ns=(int(known.begins_ns[windows[0]]),
                 int(known.begins_ns[last] + known.length_ns[last])),
        lost_ns=lost_ns, lost_fraction=lost_fraction, least_fraction=least, score=SCORE,
        values=values, says=f"{name_ranks(ranks)} {verb} at times: {detail}",
        decisions=(Decision("last-arrival", True, max(one.waited_ns), None, detail),),
    )  # fmt: skip


def _own(known: Recorded, one: Stalled) -> Iterator[str]:
    """Computing kernels with a single execution that explains what others waited."""
    for times in known:
        if is_computing(times.kernel) and times.longest_ns is not None:
            own_ns = times.longest_ns[np.ix_(one.rows, one.windows)]
            if np.nan_to_num(own_ns).max() >= HALF * max(one.waited_ns):
                yield times.kernel
