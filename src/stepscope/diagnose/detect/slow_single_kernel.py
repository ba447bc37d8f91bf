"""ARGUS level 3 kernel by kernel: each kernel's typical execution against the other ranks'.

Fault: a device on which some kernel runs slower than on its peers'.
Paper: ARGUS (2026), section 6.2. What differs: as in `slow_kernel`; mean distances between whole
distributions confirm each find.
Runs by `--method argus-l3-kernels` only: the default judges all computing kernels of a rank
together (`decide.by_kernels`), which finds the same devices with less work.
Cost: one sort per kernel, group and window. Cannot see: kernels that run less than twenty times in
a window; communication, which waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect.slow_kernel import Slower, distance_of, slower
from stepscope.diagnose.finding import Decision, Slowdown
from stepscope.diagnose.method import Needs, SoFar
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import score
from stepscope.diagnose.views.breakdown import is_computing
from stepscope.diagnose.views.kernel_times import KernelTimes
from stepscope.window import Floats, Ints

LEAST_EXECUTIONS = 20
"""Executions in a window: with fewer the median itself is chance. Statistics."""
APART = 0.2
"""Part of the effect by which a rank must lie further from all others than these from one another.
If a share f of the group is equally slow it is 1 - 2f of the effect: f may be two in five.
Statistics."""


class SlowSingleKernels:
    """Ranks on which one computing kernel takes longer than on ranks that do equal work."""

    name = "argus-l3-kernels"
    needs = Needs("kernels|kernel_summaries", ranks=2)

    def detect(self, job: Observed, so_far: SoFar) -> Iterator[Slowdown]:
        known = job.kernels
        if known is None:
            return
        found: dict[int, list[SlowKernel]] = {}
        for times in known:
            if is_computing(times.kernel):
                for one in slow_kernels(times, job.groups(None), known.ranks):
                    found.setdefault(one.slower.row, []).append(one)
        whole_ns = float(known.length_ns.sum())
        for row, kernels in sorted(found.items()):
            yield _of_rank(job, row, kernels, whole_ns)


def _of_rank(job: Observed, row: int, kernels: Sequence[SlowKernel], whole_ns: float) -> Slowdown:
    ordered = sorted(kernels, key=lambda one: -one.lost_ns)
    worst, lost_ns = ordered[0], sum(one.lost_ns for one in ordered)
    ratio = worst.typical_ns / worst.peers_ns
    detail = (
        f"{worst.kernel} takes {ratio:.2f} times its peers' time "
        f"(z {worst.slower.z:.1f}, noise reaches {worst.slower.needed:.1f})"
    )
    own_time = Decision("own-time", True, worst.slower.z, worst.slower.needed, detail)
    return Slowdown(
        SlowSingleKernels.name, "compute", detail, (int(job.line.ranks[row]),),
        kernels=tuple(dict.fromkeys(one.kernel for one in ordered)), slowdown=ratio,
        lost_ns=lost_ns, lost_fraction=min(lost_ns / whole_ns, 1.0),
        score=score(worst.slower.z - worst.slower.needed), decisions=(own_time,), costs_alone=True,
    )  # fmt: skip


@dataclass(frozen=True)
class SlowKernel:
    """A kernel that takes a rank longer."""

    kernel: str
    stream: int
    slower: Slower
    typical_ns: float
    peers_ns: float
    distance_ns: float
    """To its peers, in the last window of the stretch, and what these are apart among themselves,
    in the middle."""
    apart_ns: float
    lost_ns: float
    """In all windows together, what its executions took longer than the peers'."""


def slow_kernels(times: KernelTimes, groups: Sequence[Ints], tests: int) -> list[SlowKernel]:
    """Ranks on which a kernel is slower than in the others of their group.

    Args:
        groups: rows of ranks that do equal work.
        tests: how many ranks and kernels are looked at in all.
    """
    enough = np.where(times.count >= LEAST_EXECUTIONS, comparable(times, groups), np.nan)
    group_of = {int(row): group for group in groups for row in group}
    kernels = [_slow_kernel(times, one, group_of[one.row]) for one in slower(enough, groups, tests)]
    return [one for one in kernels if _is_apart(one)]


def comparable(times: KernelTimes, groups: Sequence[Ints]) -> Floats:
    """Typical durations, of ranks with as many modes as most of their group, or more.

    Where two modes were taken for one, its median says nothing of either.
    """
    typical = times.typical_ns.copy()
    for group in groups:
        usual = stats.column_median(times.number[group])
        typical[group] = np.where(times.number[group] >= usual, typical[group], np.nan)
    return typical


def _slow_kernel(times: KernelTimes, one: Slower, group: Ints) -> SlowKernel:
    part = slice(one.first, one.stop)
    own_ns = times.typical_ns[one.row, part]
    last = one.first + int(np.flatnonzero(np.isfinite(one.usual))[-1])
    distance, apart = distance_of(times, group, one.row, last)
    return SlowKernel(
        times.kernel, times.stream, one, stats.median(own_ns), stats.median(one.usual), distance,
        apart, float(np.nansum(times.count[one.row, part] * (own_ns - one.usual))),
    )  # fmt: skip


def _is_apart(one: SlowKernel) -> bool:
    least = APART * (one.typical_ns - one.peers_ns)
    return one.distance_ns - one.apart_ns >= least
