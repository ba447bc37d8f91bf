"""The ledger: measured step time = what the work needs + what each verdict costs + unexplained.

What the work needs is the fast level of the steps (their lower quartile), and all of planned pauses
(checkpoints, evaluations); or what is left when all verdicts are healed if that is less: what was
slow from the first step on has no fast level to compare with. Where verdicts overlap they may claim
the same time twice: together they get no more than their steps took above the fast level of all
others. Contract, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from stepscope.diagnose.finding import Verdict
from stepscope.diagnose.shown import Entry, Ledger, StepSeries
from stepscope.diagnose.thresholds import FAST
from stepscope.window import Floats, Ints, Mask

ENOUGH = 8
"""Steps without any verdict that show what steps take without one. Statistics."""

NO_PAUSES: Mapping[int, float] = {}


def ledger(
    series: StepSeries,
    warm_up: int,
    verdicts: Sequence[Verdict],
    planned: Collection[int] = (),
    kind: Ints | None = None,
    pauses_ns: Mapping[int, float] = NO_PAUSES,
) -> Ledger | None:
    """The job's time after the first `warm_up` steps; None without step times.

    Args:
        planned: steps in which the job pauses by design.
        kind: of each step by what work it has; each kind has a fast level of its own.
        pauses_ns: by step how long all ranks pause by design where a culprit makes it longer yet.
    """
    steps = np.array(series.steps[warm_up:], np.int64)
    took = np.array(series.duration_ns[warm_up:], np.float64)
    if not took.size or not took.sum() > 0:
        return None
    by_design = np.isin(steps, list(planned))
    claims = _claims(verdicts, steps, took)
    scale = _scale(claims, took, by_design)
    entries = [Entry(at, scale * float(lost.sum() / took.sum())) for at, lost in claims.items()]
    given, mean = sum(one.fraction for one in entries), float(took.mean())
    pauses = np.array([pauses_ns.get(int(step), 0.0) for step in steps])
    kind = np.zeros(steps.size, np.int64) if kind is None else kind[warm_up:]
    fast = np.minimum(took, _fast(took, by_design, kind) + pauses)
    needed = min(float(np.where(by_design, took, fast).mean()), mean * (1 - given))
    return Ledger(
        (int(steps[0]), int(steps[-1])), round(mean), round(needed), tuple(entries),
        round(max(1 - given - needed / mean, 0.0), 6),
    )  # fmt: skip


def _fast(took: Floats, by_design: Mask, kind: Ints) -> Floats:
    """The fast level of the kind of each step; what it took if all of its kind are planned."""
    levels = took.copy()
    for one in np.unique(kind):
        known = took[(kind == one) & ~by_design]
        if known.size:
            levels[kind == one] = np.quantile(known, FAST)
    return levels


def _claims(verdicts: Sequence[Verdict], steps: Ints, took: Floats) -> dict[int, Floats]:
    """How much of every step each verdict accounts for, in ns."""
    found: dict[int, Floats] = {}
    for at, one in enumerate(verdicts):
        if one.kind == "slowdown" and one.lost_fraction:
            first, last = one.lost_of or one.steps or (int(steps[0]), int(steps[-1]))
            inside = (steps >= first) & (steps <= last)
            if inside.any():
                found[at] = one.lost_fraction * np.where(inside, took, 0.0)
    return found


def _scale(claims: Mapping[int, Floats], took: Floats, by_design: Mask) -> float:
    """The factor that keeps the verdicts' joint claims within the time that was lost."""
    claimed = np.sum(list(claims.values()), axis=0) if claims else np.zeros_like(took)
    whole, most = float(claimed.sum()), float(took.sum())
    free = (claimed == 0) & ~by_design
    if len(claims) > 1 and free.sum() >= ENOUGH:
        slow = claimed > 0
        above = took[slow].sum() - slow.sum() * float(np.quantile(took[free], FAST))
        most = max(float(above), *(float(one.sum()) for one in claims.values()))
    return min(most / whole, 1.0) if whole > 0 else 1.0
