"""Phases that are the total of others, in logs that have durations but no times.

A logger may time a part of the step and the pieces of it (Megatron-LM's `forward-backward` beside
`forward-compute`, `backward-recv` and so on). Laid out one after another these would last longer
than the step. So where phases together do, a phase with one row in each step that is as long as the
rows that follow it, or precede it, is their total and is left out. With times, nested rows show
themselves.

Cost: one sort of the phase rows. Cannot see: totals whose pieces are not next to them.
"""

from __future__ import annotations

import numpy as np

from stepscope.diagnose.thresholds import HALF
from stepscope.window import Ints, Mask, Table, first_rows, numbered

TOLERANCE = 0.1
"""A total is as long as its pieces but for this share, which is in no piece. As `WHOLE` in
`views.phase_rows`."""


def without_totals(phases: Table, steps: Table | None) -> tuple[Table, tuple[str, ...]]:
    """The phases without totals of others, and the names of these: phases together typically last
    longer than their step until these are left out."""
    dropped: list[str] = []
    while steps is not None and _of_steps(phases, steps) > 1 + TOLERANCE:
        name = _total(phases)
        if name is None or _another_runs_beside(phases, steps, name):
            break
        phases = phases.take(~phases.strings("phase").equals(name))
        dropped.append(name)
    return phases, tuple(dropped)


def _of_steps(phases: Table, steps: Table) -> float:
    """How long phases together typically last, in parts of their step; 0 where that is unknown."""
    own = len(steps)
    key = numbered(np.append(steps.ints("rank"), phases.ints("rank")),
                   np.append(steps.ints("step"), phases.ints("step")))  # fmt: skip
    size = int(key.max(initial=-1)) + 1
    lasted = np.bincount(key[:own], steps.ints("duration_ns").clip(0), size)
    inside = np.bincount(key[own:], phases.ints("duration_ns").clip(0), size)
    known = (lasted > 0) & (inside > 0)
    return float(np.median(inside[known] / lasted[known])) if known.any() else 0.0


def _another_runs_beside(phases: Table, steps: Table, total: str) -> bool:
    """Whether without another phase the rest is as long as the step, and more so than without the
    supposed total: a host that runs ahead loads while its device computes, and both are timed."""
    names = phases.strings("phase")
    misses = {name: abs(_of_steps(phases.take(~names.equals(name)), steps) - 1)
              for name in names.values}  # fmt: skip
    best = min(misses, key=lambda name: misses[name])
    return best != total and misses[best] <= TOLERANCE


def _total(phases: Table) -> str | None:
    """The phase with the longest rows that are as long as their neighbours together, if any."""
    cell = numbered(phases.ints("rank"), phases.ints("step"))
    order = np.argsort(cell, kind="stable")
    lasted, code = phases.ints("duration_ns")[order].clip(0), phases.strings("phase").codes[order]
    fits = _as_long_as_following(cell[order], lasted)
    fits |= _as_long_as_following(-cell[order][::-1], lasted[::-1])[::-1]
    names = phases.strings("phase").values
    rows = np.bincount(code, None, len(names))
    share, length = np.bincount(code, fits, len(names)), np.bincount(code, lasted, len(names))
    each = first_rows(numbered(code.astype(np.int64), cell[order]))
    once = rows <= np.bincount(code[each], None, len(names))
    found = np.flatnonzero(once & (share > HALF * rows)).tolist()
    return names[max(found, key=lambda at: length[at])] if found else None


def _as_long_as_following(cell: Ints, lasted: Ints) -> Mask:
    """Rows as long as two or more rows that follow directly in the same cell; cells ascend."""
    until, at = np.cumsum(lasted), np.arange(cell.size)
    last = np.searchsorted(cell, cell, side="right") - 1
    most = (until + lasted * (1 + TOLERANCE)).astype(np.int64)
    end = np.minimum(np.searchsorted(until, most, side="right") - 1, last)
    return (end - at >= 2) & (until[end] - until >= lasted * (1 - TOLERANCE)) & (lasted > 0)
