"""Which phases contain others, in logs that have durations but no times.

A logger may time the step, its parts, and the pieces of these: `interval-time`, then
`forward-backward`, then `forward-compute`. Laid out one after another they would last longer than
the step, which cannot be shorter than what it contains. So the phases are looked for that together
are as long as the step, on every rank: these follow one another, and all others are inside of them
or run beside them. If no table says how long steps are, the longest phase may be the step: if
others together last as long in every step, also where it is a long one. By chance lengths are the
same, but they do not change together.

Where phases have times, those that overlap do not follow one another, though lengths may fit by
chance, if others together are as long as the step. Else the times were made up.

A part gives way to its pieces if these are most of it; what it takes longer is time between them.
Cost: sums over all choices of at most a dozen phases, of a few ranks and steps. Cannot see: phases
that are never in one step with the others; which of two equal choices is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.prepare.communication import loads
from stepscope.diagnose.thresholds import HALF
from stepscope.trace import BACKWARD, FORWARD
from stepscope.window import Floats, Ints, Mask, Table, numbered, union

TILED = 0.02
"""Of the step: phases that follow one another leave less than this out, but for gaps. Two percent,
below which nobody would act, as `step_time.SLIGHT_RISE`."""
NEARLY = 0.005
"""Of the step: choices that differ by less are equally good, and the one with the most phases
counts. A quarter of `TILED`."""
LEAST_PART = 0.01
"""Of the step: shorter phases change no choice by as much as `TILED`."""
MOST_PARTS, MOST_RANKS, MOST_STEPS = 12, 32, 32
"""Phases, ranks and steps that are looked at: 4,096 choices in a thousand steps. Our choice."""
LONGER = 0.1
"""Phases together last longer than their step by this share if some are in others. As `TOLERANCE`
in `totals`."""
TOGETHER = 0.5
"""The scatter of what is left, in parts of the scatter of the whole: lengths that are equal by
chance scatter on their own, and what is left by more than either. Halfway."""
PASSES = (FORWARD, BACKWARD)
"""By contract they follow one another: neither is in the other, nor beside it."""
ROUNDED_NS = 1_000_000
"""Times in whole milliseconds are rounded, and phases seem to overlap by that. Our choice."""


@dataclass(frozen=True)
class Contained:
    """The phases that follow one another, and the names of those that were left out."""

    rows: Mask
    """The rows of the former."""
    step: str | None
    """The phase that is the step, if no table says how long steps are."""
    whole: tuple[str, ...]
    """All phases that are as long as the step."""
    totals: tuple[str, ...]
    """These, and those that gave way to their pieces."""
    inside: tuple[str, ...]
    apart: tuple[str, ...]
    """Pieces of a phase of which a good part is in none of them: stages of a pipeline wait there,
    and not in the pieces."""


@dataclass(frozen=True)
class _Lengths:
    """How long phases last, `[phase, rank, step]`, of a few ranks and steps; NaN if unknown."""

    names: tuple[str, ...]
    lasted: Floats
    whole: Floats
    """The same of steps, `[rank, step]`."""
    overlap: Mask | None = None
    """`[phase, phase]`: which are in progress at the same time; None: no times were recorded."""

    def typical(self, at: int) -> float:
        return stats.median(self.lasted[at])

    def together(self, phases: Sequence[int]) -> Floats:
        return np.asarray(self.lasted[list(phases)].sum(axis=0))


def contained(phases: Table, steps: Table | None) -> Contained | None:
    """The phases without those that contain them or lie in them; None where none is known to."""
    known = _lengths(phases, steps)
    whole = None
    if known is not None and steps is None:
        whole = max(range(len(known.names)), key=known.typical)
        known = replace(known, whole=known.lasted[whole])
    if known is None or not _is_longer(known):
        return None
    tiles = _tiles(known, whole)
    if not tiles or (whole is not None and not _change_together(known, whole, tiles)):
        return None
    others = [at for at in range(len(known.names)) if at not in tiles and at != whole
              and _share(known, at) >= LEAST_PART]  # fmt: skip
    pieces = _pieces(known, tiles, others)
    names, kept = known.names, {at for found in pieces.values() for at in found}
    steps_alike = [at for at in range(len(names)) if at == whole or _is_step(known, at)]
    left = [at for at in others if at not in kept and at not in steps_alike]
    apart = [at for total, found in pieces.items() for at in found
             if _leaves_time(known, total, found)]  # fmt: skip

    def named(some: Iterable[int]) -> tuple[str, ...]:
        return tuple(names[at] for at in some)

    dropped = named((*steps_alike, *pieces, *left))
    return Contained(
        ~phases.strings("phase").equals(*dropped), None if whole is None else names[whole],
        named(steps_alike), named((*steps_alike, *pieces)), named(left), named(apart),
    )  # fmt: skip


def loading_beside(phases: Table, steps: Table | None) -> tuple[str, ...]:
    """The loading that runs beside other phases, at times that nobody recorded: all phases together
    last longer than the step, and the others do not."""
    known = None if steps is None else _lengths(phases, steps)
    if known is None or not _is_longer(known):
        return ()
    loading = [at for at, name in enumerate(known.names) if loads(name)]
    others = [at for at in range(len(known.names)) if at not in loading]
    longer = _is_longer(replace(known, lasted=known.lasted[others]))
    return () if longer else tuple(known.names[at] for at in loading)


def _lengths(phases: Table, steps: Table | None) -> _Lengths | None:
    """How long the phases last that most steps have; None if there are too few."""
    ranks, row = _some(phases.ints("rank"), MOST_RANKS)
    chosen, column = _some(phases.ints("step"), MOST_STEPS)
    names = phases.strings("phase")
    shape = (len(names.values), len(ranks), len(chosen))
    lasted = _grid(shape, (names.codes.astype(np.int64), row, column), phases)
    often = np.flatnonzero(np.isfinite(lasted).mean(axis=(1, 2)) > HALF)
    if often.size < 3:
        return None
    whole = np.full((1, *shape[1:]), np.nan)
    if steps is not None:
        place = np.zeros(len(steps), np.int64)
        rows, columns = (_at(grid, steps.ints(name))
                         for grid, name in ((ranks, "rank"), (chosen, "step")))  # fmt: skip
        whole = _grid(whole.shape, (place, rows, columns), steps)
    known = tuple(names.values[at] for at in often)
    return _Lengths(known, lasted[often], whole[0], _overlap(phases.take(row >= 0), known))


def _overlap(phases: Table, names: Sequence[str]) -> Mask | None:
    """Which phases are in progress at the same time, by a good part of the shorter one; None where
    no times show it."""
    if not phases.has("start_ns") or not (phases.ints("start_ns") % ROUNDED_NS).any():
        return None
    rank, start = numbered(phases.ints("rank")), phases.ints("start_ns")
    begin, end = start - start.min(), start - start.min() + phases.ints("duration_ns").clip(0)
    apart = rank * (int(end.max()) + 1)
    begin, end = begin + apart, end + apart
    parts = [phases.strings("phase").equals(name) for name in names]
    busy = [union(begin[rows], end[rows]) for rows in parts]
    lasted = np.array([(end - begin)[rows].sum() for rows in parts], np.float64)
    shared = np.array([[one.within(begin[rows], end[rows]).sum() for rows in parts]
                       for one in busy], np.float64)  # fmt: skip
    overlap = shared > LONGER * np.minimum(lasted[:, None], lasted)
    np.fill_diagonal(overlap, val=False)
    return np.asarray(overlap | overlap.T)


def _some(values: Ints, most: int) -> tuple[Ints, Ints]:
    """At most so many of the distinct values, evenly spread, and where each value is in them."""
    distinct = np.unique(values)
    some = distinct[np.unique(np.linspace(0, distinct.size - 1, most).round().astype(np.int64))]
    return some, _at(some, values)


def _at(grid: Ints, values: Ints) -> Ints:
    at = np.searchsorted(grid, values).clip(max=grid.size - 1)
    return np.where(grid[at] == values, at, -1)


def _grid(shape: tuple[int, ...], place: tuple[Ints, Ints, Ints], table: Table) -> Floats:
    """Durations on a grid, added up; NaN without rows."""
    phase, row, column = place
    kept = (phase >= 0) & (row >= 0) & (column >= 0)
    cell = (phase[kept] * shape[1] + row[kept]) * shape[2] + column[kept]
    size = int(np.prod(shape))
    total = np.bincount(cell, table.ints("duration_ns")[kept].clip(0).astype(np.float64), size)
    return np.where(np.bincount(cell, None, size) > 0, total, np.nan).reshape(shape)


def _is_longer(known: _Lengths) -> bool:
    """Whether phases together typically last longer than their step."""
    ratio = np.nansum(known.lasted, axis=0) / _positive(known.whole)
    return stats.median(ratio) > 1 + LONGER


def _positive(whole: Floats) -> Floats:
    return np.where(whole > 0, whole, np.nan)


def _share(known: _Lengths, at: int) -> float:
    """Which part of the step a phase is, at most: in most steps, of all ranks, it may be short."""
    return float(np.nanmax(known.lasted[at] / _positive(known.whole), initial=0.0))


def _is_step(known: _Lengths, at: int) -> bool:
    return bool(_misses(known.lasted[at][None], known.whole)[0] <= TILED)


def _misses(sums: Floats, whole: Floats) -> Floats:
    """By how much sums, `[choice, rank, step]`, miss the step: of the worst rank, in its typical
    step."""
    error = np.abs(sums / _positive(whole) - 1)
    typical = stats.column_median(np.moveaxis(error, -1, 0))
    return np.asarray(np.where(np.isfinite(typical), typical, 0.0).max(axis=-1))


def _tiles(known: _Lengths, whole: int | None) -> list[int]:
    """The most phases that together are as long as the step, on every rank; none if no choice
    is."""
    parts = [
        at
        for at in range(len(known.names))
        if at != whole and not _is_step(known, at) and _share(known, at) >= LEAST_PART
    ]
    parts = sorted(parts, key=lambda at: -known.typical(at))[:MOST_PARTS]
    if len(parts) < 2:
        return []
    choices = (np.arange(1, 2 ** len(parts))[:, None] >> np.arange(len(parts))) & 1
    lasted = known.lasted[parts].reshape(len(parts), -1)
    sums = choices.astype(np.float64) @ np.nan_to_num(lasted)
    sums = sums.reshape(-1, *known.whole.shape)
    complete = np.isfinite(known.lasted[parts]).all(axis=0)
    misses = _misses(sums, np.where(complete, known.whole, np.nan))
    passes = choices[:, [known.names[at] in PASSES for at in parts]]
    misses[passes.any(axis=1) & ~passes.all(axis=1)] = np.inf
    if known.overlap is not None:
        beside = known.overlap[np.ix_(parts, parts)].astype(np.float64)
        apart = np.einsum("ci,ij,cj->c", choices, beside, choices) == 0
        if misses[apart].min() <= TILED + NEARLY:
            misses[~apart] = np.inf
            misses = np.maximum(misses - NEARLY, 0.0)
    if not misses.min() <= TILED:
        return []
    equal = np.flatnonzero(misses <= min(misses.min() + NEARLY, TILED))
    best = max(equal.tolist(), key=lambda one: (choices[one].sum(), -misses[one]))
    return [at for at, chosen in zip(parts, choices[best].tolist(), strict=True) if chosen]


def _change_together(known: _Lengths, whole: int, tiles: Sequence[int]) -> bool:
    """Whether a phase is long in just the steps in which others together are."""
    length = known.lasted[whole]
    rest = length - known.together(tiles)
    scatter = np.array([stats.sigma(one) for one in length])
    left = np.array([stats.sigma(one) for one in rest])
    return bool(np.mean((scatter > 0) & (left <= TOGETHER * scatter)) > HALF)


def _pieces(
    known: _Lengths, tiles: Sequence[int], others: Sequence[int]
) -> dict[int, list[int]]:  # fmt: skip
    """Parts of the step that give way to their pieces, and these: each is in the shortest part that
    is long enough."""
    found: dict[int, list[int]] = {}
    for at in sorted(others, key=lambda one: -known.typical(one)):
        fits = [tile for tile in tiles if _holds(known, tile, [*found.get(tile, []), at])]
        if fits and not _is_step(known, at):
            found.setdefault(min(fits, key=known.typical), []).append(at)
    return {total: inside for total, inside in found.items() if _stand_for(known, total, inside)}


def _holds(known: _Lengths, total: int, pieces: Sequence[int]) -> bool:
    """Whether a phase is long enough for these on every rank."""
    rest = known.lasted[total] * (1 + TILED) - known.together(pieces)
    return bool((np.nan_to_num(stats.row_medians(rest)) >= 0).all())


def _stand_for(known: _Lengths, total: int, pieces: Sequence[int]) -> bool:
    """Whether pieces are most of a phase, and nothing else runs in what they leave: on some rank
    they leave nothing, or ranks with longer pieces have less left, because others wait there."""
    own = stats.row_medians(known.together(pieces))
    left = stats.row_medians(known.lasted[total] - known.together(pieces))
    share = own / np.maximum(own + left, 1.0)
    if len(pieces) < 2 or not stats.median(share) > HALF:
        return False
    return bool(np.nanmax(share) > 1 - LONGER) or _mirrors(own, left)


def _mirrors(own: Floats, left: Floats) -> bool:
    known = np.isfinite(own) & np.isfinite(left)
    own, left = own[known], left[known]
    if own.size < 3 or not (np.ptp(own) and np.ptp(left)):
        return False
    return float(np.corrcoef(own, left)[0, 1]) < -HALF


def _leaves_time(known: _Lengths, total: int, pieces: Sequence[int]) -> bool:
    """Whether most ranks spend a good part of a phase in none of its pieces."""
    rest = 1 - known.together(pieces) / np.maximum(known.lasted[total], 1.0)
    return stats.median(stats.row_medians(rest)) > LONGER
