"""What is certain of the work in phases whose waiting is hidden.

**The least by which a rank falls behind** (`own_at_least`). A rank that leaves a phase has met the
others in it as often as the program says, and so have these. So after the first member of each of
its groups has left, a rank waits for no one: what it does until it leaves itself is its own. What
members do before that cannot be attributed, because each of them may be the one for which the
others wait.

Only ranks of one host have one clock. Where no other member of a group is on a rank's host, it may
have waited for one that fell behind on another host by as much, so this does not count. Ranks that
entered a phase late leave it late, which is no work in it.

Where every phase begins to the nanosecond where another ended, the starts were made up from
durations. Then nobody knows in which order ranks passed through phases, and nothing is certain.

Cost: two sorts of the phase rows, two minima per group. Cannot see: a rank that takes
longer before the last meeting of a phase, ranks that are alone on their hosts, and pipelines whose
passes are those of a whole step: within that of a microbatch no rank waits for another stage.

**What all ranks compute at least** (`common_work`), for rises that all share. Where the ends of
operators are known, the time of a phase in which none was in progress is own time. There is more:
operators that were started ahead (FSDP's gathers) are in progress beside computing. A rank that is
a little faster than the last one waits in them all the time, so what is left must not be compared
between ranks. But if it becomes longer on the rank on which it is least, then all ranks compute for
longer.

Cost: one union of all operators. Cannot see: computing beside operators in progress.

**What the last rank does longer than all others between two operators** (`late_within`). All ranks
leave an operator together, and the last one to arrive at the next waits for nobody in it. So by how
much it comes later than the second last is its own time, wherever the others wait, and whatever its
device or host did meanwhile. To several that are in progress at once, as FSDP gathers ahead, it is
late once. Nobody stops to compute for the sum of gradients, so that the others are ahead by ever
more: there only the largest lateness counts. That shows a rank that stands still now and then
within a pass, when the others wait for it in the middle of theirs.

What a rank was late by when it entered the phase is no work in it, and is taken out. The rule holds
where every operator is one of all ranks: else the last one may have waited in another.

Cost: one sort of `comm_ops`. Cannot see: two ranks that are late at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.intervals import union_of_rows
from stepscope.diagnose.prepare.matching import REDUCTIONS
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.arrivals import Arrivals, collect_arrivals
from stepscope.diagnose.views.hidden_waits import WITHIN_PASSES, all_ends_known, is_whole
from stepscope.diagnose.views.inferred import LEAST_CELLS, LEAST_LATE
from stepscope.diagnose.views.meetings import meetings
from stepscope.diagnose.views.phase_rows import PhaseRows
from stepscope.diagnose.views.rings import in_rings
from stepscope.diagnose.views.unnamed import all_waits_recorded, is_staged, under_way
from stepscope.window import NULL, Floats, Ints, Mask, Table, Window, numbered, occurrence


def own_at_least(window: Window, rows: PhaseRows, hidden: Collection[str]) -> dict[str, Floats]:
    """The certain own time of phases whose own time is hidden, `[rank, step]` in ns.

    Phases are left out in which no rank falls behind by enough to matter.
    """
    comm = window.table("comm_ops")
    if rows.made_up or (comm is not None and in_rings(window, comm).any()):
        return {}
    nested = rows.shares(rows.inner)
    phases = [name for name in hidden if nested[name] <= HALF]
    wanted = rows.names.equals(*phases)
    wanted &= ~is_whole(rows) | (not is_staged(window))
    certain = _certain(window, rows, wanted)
    seen = rows.grids(np.isfinite(certain).astype(np.float64), phases)
    each = zip(rows.grids(np.nan_to_num(certain), phases), seen, strict=True)
    known = [_like_most(values, np.asarray(some.any(axis=1))) for values, some in each]
    floor_ns = LEAST_LATE * rows.line.typical_ns
    return {name: values for name, values in zip(phases, known, strict=True)
            if ((values > floor_ns).sum(axis=1) >= LEAST_CELLS).any()}  # fmt: skip


def _like_most(values: Floats, seen: Mask) -> Floats:
    """The values; of ranks of which nothing is known those of the median rank: they are neither
    faster nor slower than the others."""
    usual = stats.column_median(values[seen]) if seen.any() else np.zeros(values.shape[1])
    return np.where(seen[:, None], values, usual)


def _certain(window: Window, rows: PhaseRows, wanted: Mask) -> Floats:
    """For each row by how much the rank certainly fell behind in it; NaN if unknown or not
    wanted."""
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
    found[chosen] = (after - np.maximum(before, 0.0)).clip(0.0)
    return found


def _by_host(window: Window) -> Iterator[list[Ints]]:
    """The members of each group, host by host; a rank of an unknown host is alone, and so is one
    of a stage that may wait within a pass for a member that nobody recorded."""
    host = np.arange(len(window.ranks))
    at = {rank: row for row, rank in enumerate(window.ranks)}
    kinds = WITHIN_PASSES if is_staged(window) else ()
    unsure = {rank for group in window.job.groups_of_kind(*kinds)
              if not at.keys() >= {*group.ranks} for rank in group.ranks}  # fmt: skip
    for one in window.job.hosts:
        rows = [at[rank] for rank in one.ranks if rank in at and rank not in unsure]
        host[rows] = rows[:1] or 0
    within = is_staged(window)  # a stage waits for others as well, but not within a pass
    ways = [way for way in meetings(window) if way.kind in WITHIN_PASSES or not within]
    for group in (group for way in ways for group in way.groups):
        yield [group[host[group] == one] for one in np.unique(host[group])]


def _behind(time: Floats, place: tuple[Ints, Ints], groups: list[list[Ints]], ranks: int) -> Floats:
    """How long after the first member of each of its groups each rank was at a point of the
    program, less what may have been waiting for another host; NaN if unknown.

    Args:
        time: when each was there; a member whose row was lost may have been the first, and then
            the others fell behind by more.
        place: its rank, and the number of the point.
    """
    grid = np.full((ranks, int(place[1].max()) + 1), np.nan)
    grid[place] = time
    first = np.full_like(grid, -np.inf)
    for members in (part for parts in groups for part in parts if len(part) > 1):
        first[members] = np.maximum(first[members], np.fmin.reduce(grid[members], axis=0))
    behind = np.where(np.isfinite(first), grid - first, np.nan)
    elsewhere = np.zeros_like(grid)
    for parts in groups:
        alone = [len(part) == 1 for part in parts for _ in part]
        members, others = np.concatenate(parts), largest_other(behind[np.concatenate(parts)])
        elsewhere[members[alone]] = np.maximum(elsewhere[members[alone]], others[alone])
    return np.asarray((behind - elsewhere)[place])


def largest_other(values: Floats) -> Floats:
    """For each row and column, the largest value of the other rows."""
    if len(values) < 2:
        return np.zeros_like(values)
    second, first = np.partition(values, -2, axis=0)[-2:]
    return np.asarray(np.where(values == first, second, first))


def common_work(window: Window, rows: PhaseRows, hidden: Collection[str]) -> dict[str, Floats]:
    """Of each hidden pass the time outside of operators, `[rank, step]` in ns, of the rank that has
    the least of it: the same for all ranks."""
    comm = window.table("comm_ops")
    phases = [name for name in hidden if name in rows.passes]
    if comm is None or not phases or not _ends_known(window, rows, comm):
        return {}
    busy = union_of_rows(rows.axis, rows.line.rows, comm, under_way)
    wanted = rows.names.equals(*phases)
    alone = np.full(len(rows.rank), np.nan)
    begin, end = rows.begin[wanted], rows.end[wanted]
    alone[wanted] = end - begin - busy.within(begin, end)
    each = zip(phases, rows.grids(alone, phases), strict=True)
    found = ((name, np.where(np.isfinite(own), np.fmin.reduce(own), np.nan)) for name, own in each)
    return {name: own for name, own in found if np.nanmax(own, initial=0.0) > 0}


def _ends_known(window: Window, rows: PhaseRows, comm: Table) -> bool:
    """Whether ends were recorded of most operators, and of each group within passes."""
    if not comm.has("end_ns") or not len(comm):
        return False
    known = float((comm.ints("end_ns") != NULL).mean())
    return known > HALF and bool(all_ends_known(window, rows.line).all())


def late_within(window: Window, rows: PhaseRows, phases: Sequence[str]) -> dict[str, Floats]:
    """For how long each rank alone kept all others waiting in operators within these phases,
    `[rank, step]` in ns; empty if unknown."""
    comm = window.table("comm_ops")
    if comm is None or rows.made_up or not all_waits_recorded(window, comm):
        return {}
    if not _are_of_all(window, set(comm.strings("group").values)):
        return {}
    arrivals = collect_arrivals(window, rows.line)
    if arrivals is None:
        return {}
    return {name: _late_in(rows, arrivals, rows.names.equals(name)) for name in phases}


def _are_of_all(window: Window, groups: set[str]) -> bool:
    """Whether every recorded rank is in each of these groups."""
    ranks = frozenset(window.ranks)
    return all(ranks <= set(group.ranks) for group in window.groups if group.id in groups)


def _late_in(rows: PhaseRows, arrivals: Arrivals, wanted: Mask) -> Floats:
    """The same of the rows of one phase."""
    at = rows.axis.at(arrivals.last_rank, arrivals.last_ns)
    phase = rows.union_of(wanted)
    inside = phase.holds(at) & (arrivals.step >= 0)
    reduces = arrivals.op.equals(*REDUCTIONS)
    alone = np.maximum(arrivals.alone_of(inside & ~reduces, *rows.line.shape),
                       arrivals.most_alone_of(inside & reduces, *rows.line.shape))  # fmt: skip
    return np.asarray((alone - _late_at_entry(rows, wanted)).clip(0.0))


def _late_at_entry(rows: PhaseRows, wanted: Mask) -> Floats:
    """By how much later than the median rank each rank enters the phase for the first time."""
    shape = rows.line.shape
    origin = int(rows.start[wanted].min()) if wanted.any() else 0
    first = np.full(shape[0] * shape[1], np.inf)
    np.minimum.at(first, rows.cell[wanted], (rows.start[wanted] - origin).astype(np.float64))
    entered = np.where(np.isfinite(first), first, np.nan).reshape(shape)
    return np.nan_to_num(entered - stats.column_median(entered)).clip(0.0)
