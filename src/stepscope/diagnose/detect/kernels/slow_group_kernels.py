"""Groups whose communication kernels take longer than those of equal groups, without waiting.

Fault: a link of one group: all members take longer, so that no member stands out among them.
Paper: ARGUS (2026), section 9.2 (case 2): two of eight ranks of one expert-data-parallel group had
a damaged PCIe link. Distances between groups were a hundred times those within, and people used a
trace to see which group was slow and which one waited for it.
What differs: kernels of communication contain waiting, and a group waits for its last member, which
waits for no rank (blame rule 2). So the time of a group is that of its shortest member, and is
judged among groups of one shape as ranks are in `slow_kernel`. Ranks that wait for the slow group
take longer in another kernel, in which that group, arriving last, takes the least: this is what the
others lose, and without it nothing is lost.
A last window that is cut short is not judged: where operators of two sizes share a lane its median
lies between theirs, and moves with the cut.
Cost: a minimum per lane and group. Cannot see: groups of which there are fewer than four; what is
slow in all groups; which member it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect.kernels.slow_kernel import BRIEF_EFFECT, LEAST_GROUP, Slower, slower
from stepscope.diagnose.views.kernel_times import KernelTimes
from stepscope.window import Ints, Window

RATIO = 1.35
"""Smallest ratio to equal groups. Of 144 healthy simulated jobs of 64 ranks four have a group that
`slower` lets pass, at 1.10, 1.13, 1.18 and 1.23: if the logarithm beyond 1.1 is exponential, of
mean 0.05, one job in 2,000 has one beyond this. Our simulator."""
LEAST_WAIT = 0.25
"""Part of the median loss that each of the others must wait: a rank that waits less may be the one
that the group waits for, too. Innocent groups of simulated jobs with a late rank have no such gap,
or a negative one. Our simulator."""


@dataclass(frozen=True)
class Members:
    """A process group, the rows of its ranks, and what makes it comparable with others."""

    group: str
    rows: Ints
    shape: tuple[object, ...]


@dataclass(frozen=True)
class Shifted:
    """A group that takes longer in some kernels, and what others wait for it."""

    members: Members
    kernels: tuple[str, ...]
    """The costliest first."""
    slower: Slower
    """In the costliest; its row is the group's place among its equals."""
    ratio: float
    waiting: str
    """The kernel in which the others wait."""
    waited_ns: float
    """Each of the others, in all windows of the stretch."""


def groups_of(window: Window) -> list[Members]:
    """All groups with every member recorded, except pipelines, whose members do not all meet."""
    at = {rank: row for row, rank in enumerate(window.ranks)}
    stage = window.job.stage_by_rank
    found = []
    for group in window.groups:
        if group.kind != "pp" and len(group.ranks) > 1 and set(group.ranks) <= at.keys():
            hosts: dict[str | None, int] = {}
            layout = tuple(hosts.setdefault(window.host_of(rank), len(hosts))
                           for rank in group.ranks)  # fmt: skip
            shape = (group.kind, layout, tuple(stage.get(rank, 0) for rank in group.ranks))
            found.append(Members(group.id, np.array([at[rank] for rank in group.ranks]), shape))
    return found


def shifted_groups(
    lanes: Sequence[KernelTimes], groups: Sequence[Members], windows: int
) -> list[Shifted]:
    """Groups that take longer than their equals and are waited for, the costliest first.

    Args:
        windows: how many there are before one that is cut short.
    """
    tests = len(lanes) * len(groups)
    found: dict[str, list[tuple[KernelTimes, Slower, Members]]] = {}
    for lane in lanes:
        for equals in _classes(groups):
            # `[group, window]`: of the member that waits least; NaN where one did not run it
            least = np.stack([lane.typical_ns[one.rows].min(axis=0) for one in equals])
            for one in slower(least[:, :windows], [np.arange(len(equals))], tests):
                if one.effect < math.log(RATIO):
                    continue
                slow = equals[one.row]
                found.setdefault(slow.group, []).append((lane, one, slow))
    shifted = [_shifted(lanes, longer) for longer in found.values()]
    kept = sorted((one for one in shifted if one is not None), key=lambda one: -one.waited_ns)
    return [one for one in kept if not _is_part(one, kept)]


def _classes(groups: Sequence[Members]) -> Iterator[list[Members]]:
    shapes = dict.fromkeys(one.shape for one in groups)
    for shape in shapes:
        equals = [one for one in groups if one.shape == shape]
        ranks = np.concatenate([one.rows for one in equals])
        if len(equals) >= LEAST_GROUP and np.unique(ranks).size == ranks.size:
            yield equals


def _shifted(
    lanes: Sequence[KernelTimes], longer: Sequence[tuple[KernelTimes, Slower, Members]]
) -> Shifted | None:
    counts = [
        lane.count[slow.rows, one.first : one.stop].mean(axis=0) for lane, one, slow in longer
    ]
    costs = [float(np.nansum(count * one.usual * np.expm1(one.effect)))
             for count, (_, one, _) in zip(counts, longer, strict=True)]  # fmt: skip
    order = sorted(range(len(longer)), key=lambda at: -costs[at])
    _, one, slow = longer[order[0]]
    slow_lanes = {(lane.kernel, lane.stream) for lane, _, _ in longer}
    others = [lane for lane in lanes if (lane.kernel, lane.stream) not in slow_lanes]
    waits = [(_waited_ns(lane, slow, one), lane.kernel) for lane in others]
    waited, where = max(waits, default=(0.0, ""))
    if waited <= 0 or not _all_wait(others, slow, one, waited):
        return None
    names = dict.fromkeys(longer[at][0].kernel for at in order)
    return Shifted(slow, tuple(names), one, math.exp(one.effect), where, waited)


def _waited_ns(lane: KernelTimes, slow: Members, one: Slower) -> float:
    """By how much others take longer in a kernel than all members of the slow group; 0 if not
    clearly so."""
    part = slice(one.first, one.stop)
    others = np.setdiff1d(np.arange(lane.shape[0]), slow.rows)
    spent = np.where(lane.count > 0, lane.count * lane.typical_ns, np.nan)[:, part].sum(axis=1)
    own_ns, others_ns = spent[slow.rows], spent[others][np.isfinite(spent[others])]
    if not others_ns.size or not np.isfinite(own_ns).all():
        return 0.0
    usual = float(np.median(others_ns))
    return usual - float(own_ns.max()) if usual >= (1 + BRIEF_EFFECT) * float(own_ns.max()) else 0.0


def _all_wait(lanes: Sequence[KernelTimes], slow: Members, one: Slower, waited_ns: float) -> bool:
    """Whether all others take longer in these kernels together than all members of the slow group.

    A rank that waits no more than the group may be the one that all of them wait for.
    """
    part = slice(one.first, one.stop)
    spent = np.sum([np.nan_to_num(lane.count * lane.typical_ns)[:, part].sum(axis=1)
                    for lane in lanes], axis=0)  # fmt: skip
    others = np.setdiff1d(np.arange(spent.size), slow.rows)
    least: float = spent[others].min() - spent[slow.rows].max()
    return least >= LEAST_WAIT * waited_ns


def _is_part(one: Shifted, found: Sequence[Shifted]) -> bool:
    """Whether a larger group that was found has all its ranks."""
    rows = set(one.members.rows.tolist())
    return any(rows < set(other.members.rows.tolist()) for other in found)
