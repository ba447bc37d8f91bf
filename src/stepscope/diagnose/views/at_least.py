"""The least by which a rank falls behind in a phase whose waiting is hidden.

A rank that leaves a phase has met the others in it as often as the program says, and so have
these. So after the first member of each of its groups has left, a rank waits for no one: what it
does until it leaves itself is its own. What members do before that cannot be attributed, because
each of them may be the one for which the others wait.

Only ranks of one host have one clock. Where no other member of a group is on a rank's host, it may
have waited for one that fell behind on another host by as much, so this does not count. Ranks that
entered a phase late leave it late, which is no work in it.

Where every phase begins to the nanosecond where another ended, the starts were made up from
durations. Then nobody knows in which order ranks passed through phases, and nothing is certain.

Cost: two sorts of the phase rows, two minima per group. Cannot see: a rank that takes
longer before the last meeting of a phase, ranks that are alone on their hosts, and pipelines, whose
stages run different programs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from stepscope.diagnose.views.inferred import LEAST_CELLS, LEAST_LATE
from stepscope.diagnose.views.meetings import meetings
from stepscope.diagnose.views.phase_rows import MOSTLY, PhaseRows
from stepscope.window import Floats, Ints, Mask, Window, numbered, occurrence


def own_at_least(window: Window, rows: PhaseRows, hidden: Collection[str]) -> dict[str, Floats]:
    """The certain own time of phases whose own time is hidden, `[rank, step]` in ns.

    Phases are left out in which no rank falls behind by enough to matter.
    """
    if rows.made_up:
        return {}
    nested = rows.shares(rows.inner)
    phases = [name for name in hidden if nested[name] <= MOSTLY]
    known = rows.grids(_certain(window, rows, rows.names.equals(*phases)), phases)
    floor_ns = LEAST_LATE * rows.line.typical_ns
    return {name: values for name, values in zip(phases, known, strict=True)
            if ((values > floor_ns).sum(axis=1) >= LEAST_CELLS).any()}  # fmt: skip


def _certain(window: Window, rows: PhaseRows, wanted: Mask) -> Floats:
    """For each row by how much the rank certainly fell behind in it; NaN if not wanted."""
    found = np.full(len(rows.rank), np.nan)
    chosen = np.flatnonzero(wanted)
    if not chosen.size:
        return found
    code, start = rows.names.codes[chosen].astype(np.int64), rows.start[chosen]
    turn = occurrence(numbered(code, rows.cell[chosen]), start)
    place = rows.rank[chosen], numbered(code, rows.column[chosen], turn)
    entered = (start - start.min()).astype(np.float64)
    groups = list(_by_host(window))
    before = _behind(entered, place, groups, len(rows.line.ranks))
    after = _behind(entered + rows.duration[chosen], place, groups, len(rows.line.ranks))
    found[chosen] = np.nan_to_num(after - np.maximum(before, 0.0)).clip(0.0)
    return found


def _by_host(window: Window) -> Iterator[list[Ints]]:
    """The members of each group, host by host; a rank of an unknown host is alone."""
    host = np.arange(len(window.ranks))
    at = {rank: row for row, rank in enumerate(window.ranks)}
    for one in window.job.hosts:
        rows = [at[rank] for rank in one.ranks if rank in at]
        host[rows] = rows[:1] or 0
    for group in (group for way in meetings(window) for group in way.groups):
        yield [group[host[group] == one] for one in np.unique(host[group])]


def _behind(time: Floats, place: tuple[Ints, Ints], groups: list[list[Ints]], ranks: int) -> Floats:
    """How long after the first member of each of its groups each rank was at a point of the
    program, less what may have been waiting for another host; NaN if unknown.

    Args:
        time: when each was there.
        place: its rank, and the number of the point.
    """
    grid = np.full((ranks, int(place[1].max()) + 1), np.nan)
    grid[place] = time
    first = np.full_like(grid, -np.inf)
    for members in (part for parts in groups for part in parts if len(part) > 1):
        first[members] = np.maximum(first[members], grid[members].min(axis=0))
    behind = np.where(np.isfinite(first), grid - first, np.nan)
    elsewhere = np.zeros_like(grid)
    for parts in groups:
        alone = [len(part) == 1 for part in parts for _ in part]
        members, others = np.concatenate(parts), _largest_other(behind[np.concatenate(parts)])
        elsewhere[members[alone]] = np.maximum(elsewhere[members[alone]], others[alone])
    return np.asarray((behind - elsewhere)[place])


def _largest_other(values: Floats) -> Floats:
    """For each row and column, the largest value of the other rows."""
    if len(values) < 2:
        return np.zeros_like(values)
    second, first = np.partition(values, -2, axis=0)[-2:]
    return np.asarray(np.where(values == first, second, first))
