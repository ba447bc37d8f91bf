"""Findings on ranks that all others waited for at times, in jobs of which only kernels are known.

Where own times cover the passes, `transient` finds such a rank in the very step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from stepscope.diagnose.detect.stall import Stalled, stalled
from stepscope.diagnose.finding import Decision, Slowdown, Value
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.thresholds import LEAST_COST, LEAST_COST_ONCE, SCORE
from stepscope.diagnose.views.breakdown import is_communicating, is_computing
from stepscope.diagnose.views.kernel_times import Recorded
from stepscope.diagnose.words.advice import name_ranks
from stepscope.diagnose.words.numbers import time_apart
from stepscope.window import Floats

METHOD = "stall"
MOSTLY = 0.5
"""Part of a wait that an own execution of the rank must last to explain it. Our simulator."""


def stalls(job: Observed, known: Recorded, named: Collection[int]) -> list[Slowdown]:
    """Ranks that stalled, except those that are already named."""
    longest = _longest(known)
    if longest is None:
        return []
    hosts = [rows for rows in job.host_rows if rows.size > 1]
    found = [_finding(job, known, one) for one in stalled(longest, hosts)]
    return [one for one in found if set(named).isdisjoint(one.ranks)]


def _longest(known: Recorded) -> Floats | None:
    """`[rank, window]`: the longest communication kernel; None where none was recorded."""
    kept = [times.longest_ns for times in known if is_communicating(times.kernel)]
    recorded = [one for one in kept if one is not None]
    return np.fmax.reduce(recorded) if recorded else None


def _finding(job: Observed, known: Recorded, one: Stalled) -> Slowdown:
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
            if np.nan_to_num(own_ns).max() >= MOSTLY * max(one.waited_ns):
                yield times.kernel
