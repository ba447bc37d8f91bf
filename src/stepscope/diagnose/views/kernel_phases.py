"""Own time by kernels, in jobs that recorded no phases.

    kernels: every execution ─▶ computing, by name ─▶ `kernels`, `optimizer`   time in any of them
                             └▶ none running       ─▶ gaps, around a step      by their times

A kernel that computes waits for no other rank: its duration is own time, and all waiting is in the
kernels of communication. Durations are enough for that. In the time in which no kernel runs, a
device waits for its host; this takes the times of kernels (`unnamed.idle_times`).

Kernels that run beside each other on two streams of a device count once, as time of the earlier.
Cost: a few passes over the kernels, and a sort if they are on several streams. Cannot see: work and
waiting within one kernel.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.breakdown import is_communicating, passes_on
from stepscope.diagnose.views.tiles import running_end
from stepscope.diagnose.views.timeline import Timeline
from stepscope.diagnose.views.unnamed import KERNELS, Named, idle_times
from stepscope.trace import OPTIMIZER
from stepscope.window import NULL, Floats, Ints, Table, Window, distinct

OPTIMIZES = ("adam", "sgd", "lamb", "optim", "multi_tensor")
"""Words in the names of kernels that the passes do not run."""
SEVERAL = 2
"""Streams, of which kernels may run beside each other."""


def kernel_phases(window: Window, line: Timeline) -> Named:
    """Own time in kernels, and in none of them; empty where kernels were not recorded step by
    step, or a profiler recorded operators as well, which shows more."""
    kernels = window.table("kernels")
    if kernels is None or window.table("host_ops") is not None or not len(line.steps):
        return []
    known = [] if _is_unknown_pipeline(window, kernels) else _computing(kernels, line)
    return [*known, *idle_times(window, kernels, line)]


def _is_unknown_pipeline(window: Window, kernels: Table) -> bool:
    """Whether ranks may do unequal work, since they pass data on and nobody listed groups."""
    return not window.job.groups and any(map(passes_on, kernels.strings("kernel").values))


def _computing(kernels: Table, line: Timeline) -> Named:
    """Own time in kernels; empty where they were recorded in the lesser part of the steps only."""
    if not kernels.has("step", "duration_ns"):
        return []
    kernels = kernels.take((line.cells(kernels) >= 0) & (kernels.ints("duration_ns") != NULL))
    names = kernels.strings("kernel")
    own = [name for name in names.values if not is_communicating(name)]
    kernels = kernels.take(names.equals(*own))
    kernels = kernels.with_column("duration_ns", _counted_once(kernels))
    names = kernels.strings("kernel")
    updates = [name for name in own if optimizes(name)]
    passes = [name for name in own if name not in updates]
    spent = _spent(kernels.take(names.equals(*passes)), line)
    if np.isfinite(spent).mean() <= HALF:
        return []
    updating = _spent(kernels.take(names.equals(*updates)), line)
    return [(KERNELS, spent), (OPTIMIZER, updating)] if updates else [(KERNELS, spent)]


def optimizes(kernel: str) -> bool:
    """Whether a kernel updates parameters, by its name."""
    return any(word in kernel.lower() for word in OPTIMIZES)


def _spent(kernels: Table, line: Timeline) -> Floats:
    """The summed durations of kernels, `[rank, step]`; NaN where none ran."""
    total = line.sums(line.cells(kernels), kernels.ints("duration_ns"))
    return np.where(total > 0, total, np.nan)


def _counted_once(kernels: Table) -> Ints:
    """How long each kernel runs while no earlier one of its rank does."""
    lasted = kernels.ints("duration_ns").clip(0)
    if not kernels.has("stream", "start_ns") or len(distinct(kernels.ints("stream"))) < SEVERAL:
        return lasted
    start, rank = kernels.ints("start_ns"), kernels.ints("rank")
    order = np.lexsort((start, rank))
    start, rank, end = start[order], rank[order], (start + lasted)[order]
    again = np.diff(rank, prepend=-1) == 0
    before = np.roll(running_end(end, rank), 1)
    alone = np.empty_like(lasted)
    alone[order] = (end - np.where(again, np.maximum(start, before), start)).clip(0)
    return alone
