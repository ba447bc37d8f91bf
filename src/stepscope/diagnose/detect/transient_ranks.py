"""From blows to culprits: ranks that are slow now and then, or too recently for L2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from stepscope.diagnose.detect.straggler_ranks import INFLATED, Culprit, dominant, excess_of, peers
from stepscope.diagnose.detect.transient import Series, Struck, struck
from stepscope.diagnose.numeric import stats
from stepscope.diagnose.observed import Observed
from stepscope.diagnose.views.unnamed import BETWEEN, OUTSIDE, UNNAMED
from stepscope.window import Floats, Ints

LEAST_STEPS = 10
"""Of fewer the noise is guesswork."""
BY_DESIGN = (OUTSIDE, BETWEEN)
"""Where a single long blow may be a checkpoint."""


def struck_culprits(seen: Observed) -> list[Culprit]:
    """Every rank that is struck in some phase, or in all together, more than chance explains."""
    if len(seen.line.steps) - seen.line.warm_up < LEAST_STEPS:
        return []
    found: dict[int, list[Struck]] = {}
    for one in _all_struck(seen):
        found.setdefault(one.row, []).append(one)
    return [_culprit(seen, row, mine) for row, mine in sorted(found.items())]


def _all_struck(seen: Observed) -> Iterator[Struck]:
    skip, phases, counted = seen.line.warm_up, seen.own.phases, seen.errors
    tests = len(seen.line.ranks) * (len(phases) + 1)
    units = _hosts(seen)
    parts: list[tuple[str | None, Floats]] = list(zip(phases, seen.own.own, strict=True))
    if len(phases) > 1:
        parts.append((None, _in_steps(seen)))
    for phase, own in parts:
        series = Series(
            own[:, skip:], seen.groups(phase), seen.line.steps[skip:],
            seen.line.begins_ns[skip:], seen.line.typical_ns, counted[:, skip:],
        )  # fmt: skip
        for one in struck(series, units, tests, phase not in BY_DESIGN):
            columns = tuple(column + skip for column in one.columns)
            yield replace(one, columns=columns)


def _hosts(seen: Observed) -> list[Ints]:
    row = {int(rank): at for at, rank in enumerate(seen.line.ranks)}
    hosts = [[row[rank] for rank in host.ranks if rank in row] for host in seen.window.job.hosts]
    return [np.array(rows, np.int64) for rows in hosts if rows]


def _in_steps(seen: Observed) -> Floats:
    """Own time of all phases but those in which a rank may save or log by design."""
    named = [own for phase, own in zip(seen.own.phases, seen.own.own, strict=True)
             if phase not in BY_DESIGN]  # fmt: skip
    known = np.isfinite(named).any(axis=0)
    return np.where(known, np.nansum(named, axis=0), np.nan)


def _culprit(seen: Observed, row: int, mine: list[Struck]) -> Culprit:
    """Merges what was found of a rank in several phases."""
    surest = max(mine, key=lambda one: one.z - one.needed)
    columns = np.unique(np.concatenate([one.columns for one in mine])).astype(np.int64)
    first, stop = int(columns[0]), int(columns[-1]) + 1
    shares = _shares(seen, row, columns)
    worst, worst_ns = _heaviest_run(seen, row, columns, tuple(shares))
    phase, carried = dominant(shares), sum(shares.values())
    # nobody knows times outside of phases, so they are no measure of how slow a rank is
    own = seen.total if phase in (None, *UNNAMED) else seen.own.own[seen.own.phases.index(phase)]
    theirs = stats.median(peers(seen, own, phase, row)[columns])
    slowdown = stats.median(own[row, columns]) / max(theirs, 1.0)
    return Culprit(
        row, phase, tuple(shares), first, stop, surest.effect, surest.z, surest.needed,
        carried * columns.size / (stop - first), slowdown, len(shares),
        tuple(map(int, columns)), all(one.alone for one in mine),
        worst, worst_ns,
    )  # fmt: skip


def _heaviest_run(
    seen: Observed, row: int, columns: Ints, phases: tuple[str, ...]
) -> tuple[tuple[int, int], float]:
    """The neighbouring columns that carry most of the excess, and how much per step."""
    whole = sum((np.nan_to_num(excess_of(seen, phase, row)) for phase in phases),
                np.zeros(len(seen.line.steps)))  # fmt: skip
    runs = np.split(columns, np.flatnonzero(np.diff(columns) > 1) + 1)
    heaviest = max(runs, key=lambda run: float(whole[run].sum()))
    return (int(heaviest[0]), int(heaviest[-1]) + 1), float(whole[heaviest].mean())


def _shares(seen: Observed, row: int, columns: Ints) -> dict[str, float]:
    """Mean excess per blow of the phases that carry a share of it, of the worst in any case."""
    means = {phase: float(np.nan_to_num(excess_of(seen, phase, row)[columns]).mean())
             for phase in seen.own.phases}  # fmt: skip
    whole = sum(max(mean, 0.0) for mean in means.values())
    worst = max(means, key=lambda phase: means[phase])
    return {phase: mean for phase, mean in means.items()
            if phase == worst or mean > INFLATED * whole}  # fmt: skip
