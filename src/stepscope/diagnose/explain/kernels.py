"""The kernels that make a suspect slow.

Fault: kernels or copies that take longer on one rank than on its peers.
Paper: ARGUS (2026), section 6.2 (level 3).
What differs: the rank is known to be slow already, so means are compared, tails included. Where
kernels alone show who is slow, `decide.by_kernels` finds the rank. Copies that take longer may be
hidden behind computation, so they accuse nobody by themselves.
Cost: one pass over the kernels of the suspect's group. Cannot see: which step was slow in a window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose.detect.kernels.slow_kernel import EFFECT, distance_of
from stepscope.diagnose.detect.ranks.transient import UNLIKE
from stepscope.diagnose.explain.cpu import processor_evidence
from stepscope.diagnose.explain.elimination import plain_cause
from stepscope.diagnose.finding import Cause, Evidence, Span, Value
from stepscope.diagnose.method import Explained, Needs
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed, once
from stepscope.diagnose.suspect import Suspect
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.breakdown import is_computing, is_copying
from stepscope.diagnose.views.kernel_times import KernelTimes, Recorded, recorded
from stepscope.window import Ints

METHOD = "slow-kernels"
NAMED = 3
"""Number of kernels that are named, the costliest first. Our simulator."""
LEAST_SHARE = 0.1
"""Of what all slower kernels cost: one that costs less is not named. Our simulator."""


@dataclass(frozen=True)
class LongerKernel:
    """A kernel that takes a rank longer than its peers in some windows."""

    kernel: str
    ratio: float
    lost_ns: float
    distance_ns: float
    apart_ns: float

    def __str__(self) -> str:
        text = f"{self.kernel} takes {self.ratio:.2f}x its peers' time"
        far, near = self.distance_ns / 1e3, self.apart_ns / 1e3
        return text + f" (mean distance {far:.1f} us, {near:.1f} us among the peers)"


class SlowCopies:
    """Copies between host and device that take longer than on the peers, and most of the excess."""

    name = "slow-copies"
    causes: tuple[Cause, ...] = ("memory_copy",)
    needs = Needs("kernels|kernel_summaries", ranks=2)

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        known = _known(job, suspect)
        if known is None or plain_cause(job, suspect)[1] != "residual":
            return None
        copies = longer_kernels(known.recorded, known.group, suspect.row, known.windows, is_copying)
        length_ns = float(known.recorded.length_ns[known.windows].sum())
        steps = length_ns / max(job.line.typical_ns, 1.0)
        share = sum(copy.lost_ns for copy in copies) / max(suspect.excess_ns * steps, 1.0)
        if not copies or share < HALF:
            return None
        evidence = (*processor_evidence(job, suspect), evidence_of(copies))
        return Explained(
            "memory_copy", "measured", evidence, share, kernels=_names(copies), proven=True
        )


class SlowKernels:
    """Computing kernels that take longer than on the peers, always or in rare executions."""

    name = METHOD
    causes: tuple[Cause, ...] = ("compute",)
    needs = Needs("kernels|kernel_summaries", ranks=2)

    def explain(self, job: Observed, suspect: Suspect) -> Explained | None:
        known = _known(job, suspect)
        if known is None or plain_cause(job, suspect)[0] != "compute":
            return None
        found = slow_kernels(job, suspect)
        if found is None:
            return None
        names, evidence = found
        return Explained("compute", "residual", (evidence,), kernels=names, agrees=True)


@dataclass(frozen=True)
class _Known:
    """The kernels of a suspect and its peers, and the windows in which it is slow."""

    recorded: Recorded
    group: Ints
    windows: Ints


@once
def _known(job: Observed, suspect: Suspect) -> _Known | None:
    group = group_of(job, suspect.row, suspect.phase)
    found = recorded(job.window, job.line, group) if group.size > 1 else None
    if found is None:
        return None
    span_ns = job.line.span_ns(suspect.first, suspect.stop)
    return _Known(found, group, _during(found, span_ns))


def slow_kernels(job: Observed, suspect: Suspect) -> tuple[tuple[str, ...], Evidence] | None:
    """The computing kernels that make a suspect slow, and the evidence for it."""
    known = _known(job, suspect)
    if known is None:
        return None
    found = longer_kernels(known.recorded, known.group, suspect.row, known.windows, is_computing)
    return (_names(found), evidence_of(found)) if found else _stalls(known, suspect.row)


def _names(found: Sequence[LongerKernel]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.kernel for one in costliest(found)))


def costliest(found: Sequence[LongerKernel]) -> list[LongerKernel]:
    """Those that are named."""
    least = LEAST_SHARE * sum(one.lost_ns for one in found)
    return [one for one in found if one.lost_ns >= least][:NAMED]


def _stalls(known: _Known, row: int) -> tuple[tuple[str, ...], Evidence] | None:
    """Kernels with a single execution that stands out, though no percentile shows it."""
    times_of = {times.kernel: ratio for times in known.recorded
                if is_computing(times.kernel)
                and (ratio := _stall(times, known.group, row, known.windows)) >= UNLIKE
               }  # fmt: skip
    if not times_of:
        return None
    names = sorted(times_of, key=lambda name: -times_of[name])[:NAMED]
    said = [f"{name} takes up to {times_of[name]:.0f}x its peers' longest execution"
            for name in names]  # fmt: skip
    values: dict[str, Value] = {name: times_of[name] for name in names}
    return tuple(names), Evidence(METHOD, f"rarely, {'; '.join(said)}", values)


def _stall(times: KernelTimes, group: Ints, row: int, windows: Ints) -> float:
    """The longest execution over the longest of all peers; 0 where it is not known."""
    if times.longest_ns is None:
        return 0.0
    longest = np.nan_to_num(times.longest_ns[:, windows]).max(axis=1)
    others = float(longest[group[group != row]].max(initial=0.0))
    return float(longest[row]) / others if others > 0 else 0.0


def evidence_of(found: Sequence[LongerKernel]) -> Evidence:
    """How long the costliest of these kernels take, compared with the peers."""
    found = costliest(found)
    values: dict[str, Value] = {one.kernel: one.ratio for one in found}
    return Evidence(METHOD, "; ".join(map(str, found)), values)


def group_of(job: Observed, row: int, phase: str | None) -> Ints:
    """A rank and its peers."""
    return np.sort(np.append(job.peers_of(row, phase), row))


def _during(known: Recorded, span_ns: Span) -> Ints:
    """Windows of which more than half lies in a span, or else those with the largest part."""
    begin, end = known.begins_ns, known.begins_ns + known.length_ns
    part = np.minimum(end, span_ns[1]) - np.maximum(begin, span_ns[0])
    inside = np.flatnonzero(part > known.length_ns / 2)
    return inside if inside.size else np.flatnonzero(part == part.max())


def longer_kernels(
    known: Recorded, group: Ints, row: int, windows: Ints, wanted: Callable[[str], bool]
) -> list[LongerKernel]:
    """The kernels that are slower on a rank in some windows, the costliest first."""
    found = [one for times in known if wanted(times.kernel)
             if (one := _compared(times, group, row, windows)) is not None]  # fmt: skip
    return sorted(found, key=lambda one: -one.lost_ns)


def _compared(times: KernelTimes, group: Ints, row: int, windows: Ints) -> LongerKernel | None:
    """A rank's mean durations, tails included, against its peers'; None if not longer."""
    own = times.mean_ns[row, windows]
    usual = stats.column_median(times.mean_ns[group[group != row]][:, windows])
    both = np.isfinite(own) & np.isfinite(usual)
    if not both.any():
        return None
    ratio = float(np.exp(np.log(own[both] / usual[both]).mean()))
    if ratio < 1 + EFFECT:
        return None
    lost = float((times.count[row, windows] * (own - usual))[both].sum())
    apart = distance_of(times, group, row, int(windows[both][-1]))
    return LongerKernel(times.kernel, ratio, lost, *apart)
