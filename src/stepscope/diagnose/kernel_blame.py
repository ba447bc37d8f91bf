"""From kernels to verdicts: which ones make a culprit slow, and who is slow if kernels alone tell.

Where own times cover the passes of a step, they hold all that a kernel takes: who is slow is then
told by them, and kernels only say in what. Where nobody recorded phases, or what they waited, the
time that a rank's kernels compute in a window is judged as `l3` judges one kernel. What copies take
longer may be hidden behind computation, and accuses nobody by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose import stats
from stepscope.diagnose.blame import Culprit
from stepscope.diagnose.breakdown import is_communicating, is_computing, is_copying
from stepscope.diagnose.causes import Reason
from stepscope.diagnose.finding import Cause, Evidence, Finding, Span, Value, Verdict
from stepscope.diagnose.kernel_times import KernelTimes, Recorded, recorded
from stepscope.diagnose.methods import clock
from stepscope.diagnose.methods.episodes import UNLIKE
from stepscope.diagnose.methods.inner import Part, more_for_experts
from stepscope.diagnose.methods.l3 import EFFECT, LEAST_WINDOWS, Slower, distance_of, slower
from stepscope.diagnose.methods.passes import TOUCHED, UNTOUCHED
from stepscope.diagnose.methods.shifted import Shifted, groups_of, shifted_groups
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.together import Slow, joined
from stepscope.diagnose.unnamed import GAPS, OUTSIDE
from stepscope.diagnose.verdict import (
    LEAST_COST,
    LEAST_COST_ALONE,
    PER_SIGMA,
    SURE,
    SUREST,
    costs_enough,
    network_verdict,
    slow_verdict,
)
from stepscope.trace import DATA_LOAD, OPTIMIZER
from stepscope.window import Floats, Ints

METHOD = "argus-l3"
NAMED = 3
"""So many kernels are named, the costliest first."""
LEAST_SHARE = 0.1
"""Of what all slower kernels cost: one that costs less is not worth a name."""
MOST = 0.5
"""Of the excess: if durations explain less, it is more work."""
BESIDE_PASSES = (DATA_LOAD, OPTIMIZER, OUTSIDE, GAPS)
OPTIMIZES = ("adam", "sgd", "lamb", "optim", "multi_tensor")
"""Words in the names of kernels that the passes do not run."""


@dataclass(frozen=True)
class _Longer:
    """A kernel that takes a rank longer in some windows."""

    kernel: str
    ratio: float
    lost_ns: float
    distance_ns: float
    apart_ns: float

    def __str__(self) -> str:
        text = f"{self.kernel} takes {self.ratio:.2f}x its peers' time"
        far, near = self.distance_ns / 1e3, self.apart_ns / 1e3
        return text + f" (mean distance {far:.1f} us, {near:.1f} us among them)"


def with_kernels(seen: Observed, one: Culprit, reason: Reason) -> Reason:
    """The reason, with the kernels that are slower on the culprit where these were recorded.

    What is late for no other reason than its host, or nothing known, may be waiting for a copy.
    """
    if reason.kernels or reason.function or reason.cause not in ("compute", "host", "unknown"):
        return reason
    group = _group(seen, one.row, one.phase)
    known = recorded(seen.window, seen.line, group) if group.size > 1 else None
    if known is None:
        return reason
    inside = _during(known, seen.line.span_ns(one.first, one.stop))
    copies = _longer(known, group, one.row, inside, is_copying)
    steps = float(known.length_ns[inside].sum()) / max(seen.line.typical_ns, 1.0)
    if sum(copy.lost_ns for copy in copies) >= MOST * one.excess_ns * steps:
        return _because_of(replace(reason, cause="memory_copy"), copies)
    if reason.cause != "compute":
        return reason
    found = _longer(known, group, one.row, inside, is_computing)
    return _because_of(reason, found) if found else _stalls(known, group, one.row, inside, reason)


def _because_of(reason: Reason, found: Sequence[_Longer]) -> Reason:
    if not found:
        return reason
    names = tuple(dict.fromkeys(one.kernel for one in found))
    return replace(reason, kernels=names, evidence=(*reason.evidence, _evidence(found)))


def _stalls(known: Recorded, group: Ints, row: int, windows: Ints, reason: Reason) -> Reason:
    """The reason, with kernels of which one execution stands out that no percentile shows."""
    times_of = {times.kernel: ratio for times in known if is_computing(times.kernel)
                and (ratio := _stall(times, group, row, windows)) >= UNLIKE}  # fmt: skip
    if not times_of:
        return reason
    names = sorted(times_of, key=lambda name: -times_of[name])[:NAMED]
    said = [f"{name} takes up to {times_of[name]:.0f}x as long as ever on its peers"
            for name in names]  # fmt: skip
    values: dict[str, Value] = {name: times_of[name] for name in names}
    evidence = Evidence(METHOD, f"rarely, {'; '.join(said)}", values)
    return replace(reason, kernels=tuple(names), evidence=(*reason.evidence, evidence))


def _stall(times: KernelTimes, group: Ints, row: int, windows: Ints) -> float:
    """The longest execution over the longest of all peers; 0 where nobody knows."""
    if times.longest_ns is None:
        return 0.0
    longest = np.nan_to_num(times.longest_ns[:, windows]).max(axis=1)
    others = float(longest[group[group != row]].max(initial=0.0))
    return float(longest[row]) / others if others > 0 else 0.0


def _evidence(found: Sequence[_Longer]) -> Evidence:
    values: dict[str, Value] = {one.kernel: one.ratio for one in found}
    return Evidence(METHOD, "; ".join(map(str, found)), values)


def _group(seen: Observed, row: int, phase: str | None) -> Ints:
    """A rank and its peers."""
    return np.sort(np.append(seen.peers_of(row, phase), row))


def _during(known: Recorded, span_ns: Span) -> Ints:
    """Windows that lie in a time with more than half of their length, or else the most of any."""
    begin, end = known.begins_ns, known.begins_ns + known.length_ns
    part = np.minimum(end, span_ns[1]) - np.maximum(begin, span_ns[0])
    inside = np.flatnonzero(part > known.length_ns / 2)
    return inside if inside.size else np.flatnonzero(part == part.max())


def _longer(
    known: Recorded, group: Ints, row: int, windows: Ints, wanted: Callable[[str], bool]
) -> list[_Longer]:
    """The kernels that cost a rank most, of those that are slower on it."""
    found = [one for times in known if wanted(times.kernel)
             if (one := _compared(times, group, row, windows)) is not None]  # fmt: skip
    whole = sum(one.lost_ns for one in found)
    costly = [one for one in found if one.lost_ns >= LEAST_SHARE * whole]
    return sorted(costly, key=lambda one: -one.lost_ns)[:NAMED]


def _compared(times: KernelTimes, group: Ints, row: int, windows: Ints) -> _Longer | None:
    """What its executions take, tails included: who is slow is known already."""
    mine = times.mean_ns[row, windows]
    usual = stats.column_median(times.mean_ns[group[group != row]][:, windows])
    both = np.isfinite(mine) & np.isfinite(usual)
    if not both.any():
        return None
    ratio = float(np.exp(np.log(mine[both] / usual[both]).mean()))
    if ratio < 1 + EFFECT:
        return None
    lost = float((times.count[row, windows] * (mine - usual))[both].sum())
    apart = distance_of(times, group, row, int(windows[both][-1]))
    return _Longer(times.kernel, ratio, lost, *apart)


def kernel_verdicts(seen: Observed, named: Collection[int] = ()) -> list[Verdict]:
    """Ranks and groups that are slow by their kernels, where own times do not tell.

    Args:
        named: ranks that have a verdict.
    """
    known = None if _covered(seen) else recorded(seen.window, seen.line)
    if known is None:
        return []
    ranks = slower(known.spent_ns(is_computing), seen.groups(None), known.ranks)
    found = [_of_rank(seen, known, one) for one in ranks
             if int(seen.line.ranks[one.row]) not in named]  # fmt: skip
    found = [one for one in found if _is_several(one.finding)]
    slow = [slow_verdict(seen.window, one) for one in joined(seen.window, found)
            if costs_enough(one.finding)]  # fmt: skip
    groups = [_group_finding(seen, known, one) for one in _sick_groups(seen, known)]
    return slow + [network_verdict(seen.window, one) for one in groups if costs_enough(one)]


def _is_several(finding: Finding) -> bool:
    """Whether it lasts, or more than one kernel says so: a slow device is slow in all it runs."""
    windows = finding.values.get("windows")
    return len(finding.kernels) > 1 or (isinstance(windows, int) and windows >= LEAST_WINDOWS)


def _covered(seen: Observed) -> bool:
    """Whether own times hold what kernels take."""
    return bool(set(seen.own.phases) - set(BESIDE_PASSES))


def _of_rank(seen: Observed, known: Recorded, one: Slower) -> Slow:
    windows, group = np.arange(one.first, one.stop), _group(seen, one.row, None)
    found = _longer(known, group, one.row, windows, is_computing)
    excess_ns = float(np.nansum(one.usual)) * math.expm1(one.effect)
    cause = _cause(known, group, one, found, excess_ns)
    first, stop = _columns(seen, known, one)
    values: dict[str, Value] = {
        "windows": one.stop - one.first, "effect": one.effect, "z": one.z, "z_needed": one.needed,
        "excess_ns": excess_ns,
        "lost_fraction": min(excess_ns / float(known.length_ns[windows].sum()), 1.0),
        "least_fraction": LEAST_COST if windows.size >= LEAST_WINDOWS else LEAST_COST_ALONE,
        "slow_in": _extent(known, group, one.row, windows),
        "clock": clock.relative(seen, one.row, first, stop),
    }  # fmt: skip
    detail = (f"its kernels compute {math.exp(one.effect):.2f} times as long per minute as its "
              f"peers' (z {one.z:.1f}, noise reaches {one.needed:.1f})")  # fmt: skip
    return Slow(
        Finding(METHOD, "slowdown", cause, detail, (int(seen.line.ranks[one.row]),),
                kernels=tuple(dict.fromkeys(one.kernel for one in found)),
                steps=seen.line.span(first, stop) if stop > first else None,
                time_ns=_time(known, one), slowdown=math.exp(one.effect), lost_ns=excess_ns,
                confidence=_sure(one), values=values),
        (_evidence(found),) if found else (),
    )  # fmt: skip


def _sure(one: Slower) -> float:
    return min(SURE + PER_SIGMA * min(one.z - one.needed, 4.0), SUREST)


def _time(known: Recorded, one: Slower) -> Span:
    last = one.stop - 1
    return int(known.begins_ns[one.first]), int(known.begins_ns[last] + known.length_ns[last])


def _columns(seen: Observed, known: Recorded, one: Slower) -> Span:
    """The steps of a stretch of windows; none where there are no steps."""
    if not len(seen.line.steps):
        return 0, 0
    begin, end = _time(known, one)
    first, last = seen.line.column_at(np.array([begin, end - 1])).tolist()
    return max(first, 0), max(first, last, 0) + 1


def _cause(
    known: Recorded, group: Ints, one: Slower, found: Sequence[_Longer], excess_ns: float
) -> Cause:
    """More executions, or longer ones of experts alone, are more work and no slow device."""
    if sum(kernel.lost_ns for kernel in found) < MOST * excess_ns:
        return "load_imbalance"
    parts = _parts(known, group, one.row, np.arange(one.first, one.stop))
    return "load_imbalance" if more_for_experts(parts) is not None else "compute"


def _parts(known: Recorded, group: Ints, row: int, windows: Ints) -> dict[str, Part]:
    """What a rank and its peers spend in each computing kernel."""
    parts: dict[str, Part] = {}
    for times in known:
        if is_computing(times.kernel):
            spent = _spent(times, windows)
            usual = stats.median(spent[group[group != row]])
            before = parts.get(times.kernel, Part(0.0, 0.0))
            parts[times.kernel] = Part(before.mine_ns + spent[row], before.usual_ns + usual)
    return {name: part for name, part in parts.items() if part.usual_ns > 0}


def _spent(times: KernelTimes, windows: Ints) -> Floats:
    spent: Floats = np.nan_to_num(times.count * times.typical_ns)[:, windows].sum(axis=1)
    return spent


def _extent(known: Recorded, group: Ints, row: int, windows: Ints) -> str:
    """As `passes.extent`, by the kernels of the optimizer and all others."""
    parts = _parts(known, group, row, windows)
    rest = {name for name in parts if any(word in name.lower() for word in OPTIMIZES)}
    ratios = [sum(parts[name].mine_ns for name in some) / sum(parts[name].usual_ns for name in some)
              for some in (parts.keys() - rest, rest) if some]  # fmt: skip
    if len(ratios) < 2 or ratios[0] <= 1 + EFFECT:
        return "some"
    touched = (ratios[1] - 1) / (ratios[0] - 1)
    return "everything" if touched >= TOUCHED else "passes" if touched <= UNTOUCHED else "some"


def _sick_groups(seen: Observed, known: Recorded) -> list[Shifted]:
    """Groups whose data moves slower; where operators were recorded, `links` knows better."""
    comm = seen.window.table("comm_ops")
    if comm is not None and comm.has("end_ns"):
        return []
    lanes = [times for times in known if is_communicating(times.kernel)]
    return shifted_groups(lanes, groups_of(seen.window))


def _group_finding(seen: Observed, known: Recorded, one: Shifted) -> Finding:
    length = float(known.length_ns[one.slower.first : one.slower.stop].sum())
    ranks = tuple(int(seen.line.ranks[row]) for row in one.members.rows)
    first, stop = _columns(seen, known, one.slower)
    detail = (
        f"even whoever waits least in {one.members.group} takes {one.ratio:.2f} times as long in "
        f"{one.kernels[0]} as in equal groups (z {one.slower.z:.1f}, noise reaches "
        f"{one.slower.needed:.1f}), and all others wait for it in {one.waiting}"
    )
    values: dict[str, Value] = {
        "where": f"in {one.members.group} than in equal groups", "ratio": one.ratio,
        "z": one.slower.z, "z_needed": one.slower.needed, "waited_ns": one.waited_ns,
        "members": [int(rank) for rank in ranks], "waiting": one.waiting,
        "victims": known.ranks - len(ranks), "lost_fraction": min(one.waited_ns / length, 1.0),
    }  # fmt: skip
    return Finding(
        METHOD, "slowdown", "network", detail, group=one.members.group, kernels=one.kernels,
        steps=seen.line.span(first, stop) if stop > first else None,
        time_ns=_time(known, one.slower), slowdown=one.ratio, lost_ns=one.waited_ns,
        confidence=_sure(one.slower), values=values,
    )  # fmt: skip
