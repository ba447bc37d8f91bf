"""A rise of the step time that all ranks share: blame rule 6, code or configuration, not a rank.

Fault: a function, a phase, the network or the machines got slower for everyone from some step on.
Paper: ARGUS (2026), L1 and case study 1, finds such a regression and leaves its cause to L4 and L5.
Ours: the rise is set against what rose: own time per phase on the median rank, processor time,
pauses, transfer time after the last arrival, functions in stacks. Where nothing that would tell
code from a busy machine was recorded, only a rise well beyond the noise is worth a verdict.
Cost: medians of arrays at hand. Cannot see: a job slow from the start (compare with a baseline).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from stepscope.diagnose import stats
from stepscope.diagnose.finding import Cause, Finding
from stepscope.diagnose.methods.l1 import Regression
from stepscope.diagnose.methods.pauses import EXPLAINS, risen_pause_ns
from stepscope.diagnose.methods.processor import COMPUTES, STRANGERS
from stepscope.diagnose.methods.stacks import (
    STANDS_OUT,
    Samples,
    Slow,
    compiles,
    slower_than_before,
)
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.unnamed import UNNAMED
from stepscope.trace import DATA_LOAD
from stepscope.window import Floats

SHARED = 0.75
"""This part of the ranks must show the rise in their own time for it to be everyone's."""
HALF = 0.5
"""A quantity explains a rise of which it is at least half."""
DOMINANT = 0.6
"""A phase is named when it carries so much of the rise."""
UNEXPLAINED_RATIO = 2.0
"""A rise of everything at once, for which nothing was measured as the reason, is most often the
neighbours on a shared machine: worth a verdict, with little confidence, once steps double."""
BEYOND_NOISE = 1.5
"""Without direct evidence the rise must be so many standard deviations of a single step: shared
machines get slower by less whenever somebody else starts something."""


@dataclass(frozen=True)
class Rise:
    """What rose, per step and in ns, from before the split to after it."""

    step_ns: float
    own_ns: float
    shared: float
    """Part of the ranks whose own time rose by half as much as the median rank's."""
    phase: str | None
    processor_ns: float | None
    pause_ns: float
    transfer_ns: float


def shared_rise(seen: Observed, change: Regression, culprits: Collection[int] = ()) -> Rise:
    """Measures everything that could have made all ranks slower; culprits have a verdict."""
    before, after = slice(seen.line.warm_up, change.split), slice(change.split, None)
    own = _rise(seen.total, before, after)
    typical = stats.median(own)
    known = own[np.isfinite(own)]
    shared = float((known >= HALF * typical).mean()) if known.size and typical > 0 else 0.0
    processor = None if seen.processor is None else _rise(seen.processor, before, after)
    return Rise(
        change.after_ns - change.before_ns,
        typical,
        shared,
        _phase(seen, before, after, typical),
        None if processor is None else stats.median(processor),
        risen_pause_ns(seen, before, after, culprits),
        _transfer(seen, change.split),
    )


def _rise(values: Floats, before: slice, after: slice) -> Floats:
    """Median after less median before, rank by rank."""
    return stats.column_median(values[:, after].T) - stats.column_median(values[:, before].T)


def _phase(seen: Observed, before: slice, after: slice, whole: float) -> str | None:
    """The phase that carries the rise, by clearly more than its part of the step before."""
    total = stats.median(seen.total[:, before])
    parts = {
        phase: (stats.median(_rise(own, before, after)), stats.median(own[:, before]))
        for phase, own in zip(seen.own.phases, seen.own.own, strict=True)
    }
    phase = max(parts, key=lambda name: parts[name][0], default=None)
    if phase is None or whole <= 0 or total <= 0:
        return None
    part, usual = parts[phase][0] / whole, parts[phase][1] / total
    return phase if part >= DOMINANT and part - usual >= STANDS_OUT else None


def _transfer(seen: Observed, split: int) -> float:
    """Rise of the time data takes after the last arrival, summed over a step's collectives."""
    arrivals, columns = seen.arrivals, len(seen.line.steps)
    if arrivals is None:
        return 0.0
    known = (arrivals.step >= 0) & np.isfinite(arrivals.transfer_ns)
    total = stats.sums(arrivals.step[known], arrivals.transfer_ns[known], columns)
    return stats.median(total[split:]) - stats.median(total[seen.line.warm_up : split])


def find_everyones(
    seen: Observed,
    samples: Samples | None,
    change: Regression,
    culprits: Collection[int] = (),
) -> Finding | None:
    """The regression as a finding about all ranks, if it is theirs and something tells why.

    Args:
        change: of the step times without what the culprits cost.
        culprits: rows that have a verdict of their own: their pauses and functions are explained.
    """
    rise = shared_rise(seen, change, culprits)
    split_ns = int(seen.line.begins_ns[change.split])
    slow = None
    if samples is not None:
        others = samples.without(culprits)
        slow = slower_than_before(others, split_ns, change.before_ns, change.after_ns)
    own = rise.shared >= SHARED and rise.own_ns >= HALF * rise.step_ns
    if not own and seen.own.phases and rise.transfer_ns < HALF * rise.step_ns:
        return None  # some ranks got slower and the others waited: not everyone's
    cause, certainty = _cause(seen, rise, slow, change)
    if certainty <= 0:
        return None
    return _finding(seen, change, rise, slow, cause, certainty)


def _cause(
    seen: Observed, rise: Rise, slow: Slow | None, change: Regression
) -> tuple[Cause, float]:
    """The cause and how sure it is; 0 where nothing worth saying is left."""
    if rise.pause_ns >= EXPLAINS * rise.step_ns:
        return "gc", 0.9
    if slow is not None:
        return ("jit_compile" if compiles(slow.function) else "code"), 0.9
    if change.ratio < _least_unexplained(seen, change):
        return "unknown", 0.0
    return _inferred(seen, rise, change)


def _inferred(seen: Observed, rise: Rise, change: Regression) -> tuple[Cause, float]:
    """The cause by what rose along, without a function or a pause to point at."""
    if rise.transfer_ns >= HALF * rise.step_ns:
        return "network", 0.6
    if rise.phase == DATA_LOAD:
        return "data_loading", 0.7
    if rise.processor_ns is not None and rise.processor_ns < COMPUTES * rise.own_ns:
        taken = seen.hardware("stranger_cpu_util", change.split, len(seen.line.steps))
        if stats.median(taken) >= STRANGERS:
            return "contention", 0.6
        return "host", 0.4 if change.ratio >= UNEXPLAINED_RATIO else 0.0
    if rise.phase is not None:
        return "code", 0.5
    return "unknown", 0.3 if change.ratio >= UNEXPLAINED_RATIO else 0.0


def _least_unexplained(seen: Observed, change: Regression) -> float:
    series = seen.line.job_period_ns[seen.line.warm_up : change.split]
    level = stats.median(series)
    return 1.0 + max(0.1, BEYOND_NOISE * stats.sigma(series) / level if level > 0 else 0.0)


def _finding(
    seen: Observed, change: Regression, rise: Rise, slow: Slow | None, cause: Cause, sure: float
) -> Finding:
    line, stop = seen.line, len(seen.line.steps)
    detail = (
        f"steps take {change.ratio:.2f} times as long on all ranks from step "
        f"{line.steps[change.split]}"
    )
    if slow is not None:
        detail += f"; {100 * min(slow.grew, 1):.0f} % of the rise is in {slow.function}"
    return Finding(
        method="everyone", kind="slowdown", cause=cause, detail=detail,
        phase=None if rise.phase in UNNAMED else rise.phase,
        function=None if slow is None else slow.function,
        steps=line.span(change.split, stop), time_ns=line.span_ns(change.split, stop),
        slowdown=change.ratio, lost_ns=rise.step_ns, confidence=sure,
        values={"z": change.z, "own_ns": rise.own_ns, "shared": rise.shared,
                "processor_ns": rise.processor_ns, "pause_ns": rise.pause_ns,
                "transfer_ns": rise.transfer_ns},
    )  # fmt: skip
