"""Steps and phases of which only durations were recorded, laid out one after another.

A logger prints how long each step and its phases took, not when. Diagnosis places everything on an
axis of time, so such rows are given times: ranks begin each step together, after the longest of the
step before or with the first operator of the step, and the phases of a step follow one another in
the order of their rows. Durations stay as they were recorded. The order is assumed, and reported as
such.

The same holds if all phases of a step are said to begin at one moment: then somebody wrote them
down, and when each of them began is not known. And it holds if two passes overlap and neither is
inside the other: nobody computes both at once, so the logger added up the passes of all
microbatches and kept the time of the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from stepscope.diagnose.finding import Skipped
from stepscope.diagnose.prepare.communication import is_work, loads
from stepscope.diagnose.prepare.containers import contained, loading_beside
from stepscope.diagnose.prepare.totals import TOLERANCE, without_totals
from stepscope.trace import BACKWARD, FORWARD
from stepscope.window import NULL, Ints, Mask, Table, Window, numbered, union

TIMES = {
    "comm_ops": "enqueue_ns",
    "kernels": "start_ns",
    "stacks": "start_ns",
    "hardware": "ts_ns",
    "phases": "start_ns",
}
"""Tables whose times tell when a job ran."""
EARLIEST_NS = 10**9
"""Where the axis begins if nothing has times: after 0, which stands for an unknown time."""
UNTIMED = ("steps", "phases")
"""Tables that are of use without times, in the order in which they are laid out."""
APART = "apart"
"""Column of ours: 1 for pieces of a phase that leave a good part of it, in which ranks wait."""
LATEST_NS = 4 * 10**18
"""The year 2096; the sum of two later times would overflow int64."""
MOSTLY = 0.5
"""Of a phase's rows, as in `views.phase_rows`."""
LONGEST_NS = 10**15
"""No step, phase or operator lasts eleven days: the clock jumped between its start and end. Our
simulator."""


def laid_out(window: Window) -> tuple[Window, tuple[Skipped, ...]]:
    """The window with times for tables that have only durations, and a note on each of them."""
    tables, notes, first = dict(window.tables), [], _earliest(window)
    called, untimed = window.table("comm_ops"), [name for name in UNTIMED if _lacks(window, name)]
    if "phases" not in untimed and _are_sums(window.table("phases")):
        tables["phases"] = tables["phases"].take(tables["phases"].ints("start_ns").argsort())
        untimed.append("phases")
    if "phases" in untimed:
        notes += _without_containers(tables, untimed)
    elif _is_foreign(window.table("phases")):
        notes += _without_whole(tables, untimed)
    for name in untimed:
        table = tables[name]
        begins = _steps_of(tables) if name == "phases" else _first_phases(tables, untimed)
        begins = begins or _after_the_longest(
            table if name == "steps" else _sums(table), first, called
        )
        tables[name] = table.with_column("start_ns", _starts(table, begins))
        notes.append(Skipped(f"times of {name}", "no times, only durations: order assumed"))
    job = window.job
    if untimed and _earliest(window) == EARLIEST_NS:  # no moment can be compared with made-up times
        job = replace(job, observed_until_ns=None)
    return Window(job, tables), tuple(notes)


def _lacks(window: Window, name: str) -> bool:
    table = window.table(name)
    return table is not None and (_is_untimed(table) or (name == "phases" and _is_stamped(table)))


def _is_stamped(phases: Table) -> bool:
    """Whether the phases of a step all begin at one moment, on every rank.

    The first rank tells most logs apart.
    """
    if not len(phases) or not phases.has("rank", "step", "start_ns", "duration_ns"):
        return False
    one = phases.take(phases.ints("rank") == phases.ints("rank")[0])
    return _begin_at_once(one) and _begin_at_once(phases)


def _are_sums(phases: Table | None) -> bool:
    """Whether rows are sums over a step: the two phases with most work overlap in most steps of any
    rank, and neither contains the other. (The last stage of a pipeline takes turns with both.)"""
    if phases is None or not phases.has("rank", "step", "phase", "start_ns", "duration_ns"):
        return False
    names = phases.strings("phase")
    works = [code for code, name in enumerate(names.values) if is_work(name)]
    if len(works) < 2:
        return False
    # code -1 is null
    spent = np.bincount(names.codes + 1, _lasted(phases), len(names.values) + 1)[1:]
    most = sorted(works, key=lambda code: -spent[code])[:2]
    of_first = phases.ints("rank") == phases.ints("rank")[:1]
    if any(_is_repeated(phases.take(of_first & (names.codes == code))) for code in most):
        return False  # mostly so, and seen by one rank
    return _cut_each_other(*(phases.take(names.codes == code) for code in most))


def _is_repeated(phase: Table) -> bool:
    """Whether a rank runs a phase more than once in any step."""
    key = phase.ints("rank").astype(np.int64) << 40 | phase.ints("step")
    return bool(np.unique(key).size < key.size)


def _cut_each_other(one: Table, other: Table) -> bool:
    """Whether on any rank the rows of two phases, one of each in a step, mostly overlap in part, by
    more than rounding."""
    if _is_repeated(one) or _is_repeated(other):
        return False
    keys = [each.ints("rank").astype(np.int64) << 40 | each.ints("step") for each in (one, other)]
    _, at, there = np.intersect1d(keys[0], keys[1], assume_unique=True, return_indices=True)
    begins = np.stack((one.ints("start_ns")[at], other.ints("start_ns")[there]))
    lasted = np.stack((_lasted(one)[at], _lasted(other)[there]))
    ends = begins + lasted
    least = TOLERANCE * lasted.min(axis=0)
    cut = ends.min(axis=0) - begins.max(axis=0) > least
    cut &= (np.ptp(begins, axis=0) > least) & (np.ptp(ends, axis=0) > least)
    # the one that begins first also ends first, or it contains the other
    cut &= begins.argmin(axis=0) == ends.argmin(axis=0)
    rank = numbered(one.ints("rank")[at])
    often = np.bincount(rank, cut) > MOSTLY * np.bincount(rank)
    return bool(often.any())


def _begin_at_once(phases: Table) -> bool:
    phases = phases.take(phases.ints("duration_ns") > 0)
    if not len(phases):
        return False
    cell, start = numbered(phases.ints("rank"), phases.ints("step")), phases.ints("start_ns")
    _, first, rows = np.unique(cell, return_index=True, return_counts=True)
    return bool((start == start[first][cell]).all() and np.median(rows) > 1)


def _without_containers(tables: dict[str, Table], untimed: list[str]) -> list[Skipped]:
    """Takes phases out that contain others, or lie in them; the one that is the step becomes it."""
    phases, steps = tables["phases"], tables.get("steps")
    found = contained(phases, steps)
    if found is None:
        phases, totals = without_totals(phases, steps)
        beside = loading_beside(phases, steps)
        tables["phases"] = phases.take(~phases.strings("phase").equals(*beside))
        return _skipped(totals) + _skipped(beside, "beside other phases, at unknown times")
    apart = phases.strings("phase").equals(*found.apart).astype(np.int64)
    tables["phases"] = phases.with_column(APART, apart).take(found.rows)
    if found.step is not None:
        tables["steps"] = _times_of(phases, found.step, "duration_ns")
        untimed.insert(0, "steps")
    return _skipped(found.totals) + _skipped(found.inside, "part of another phase, or beside it")


def _skipped(names: Iterable[str], why: str = "a total of other phases") -> list[Skipped]:
    return [Skipped(f"phase {name}", why) for name in names]


def _times_of(phases: Table, name: str, *columns: str) -> Table:
    """The steps, from the phase that is one."""
    whole = phases.take(phases.strings("phase").equals(name))
    return Table({column: whole.ints(column) for column in ("rank", "step", *columns)})


def _is_foreign(phases: Table | None) -> bool:
    """Whether no pass has the contract's name: then nobody says which phases are in which."""
    if phases is None or not phases.has("rank", "step", "phase", "start_ns", "duration_ns"):
        return False
    return not {FORWARD, BACKWARD}.intersection(phases.strings("phase").values)


def _without_whole(tables: dict[str, Table], untimed: list[str]) -> list[Skipped]:
    """The same of phases with times: the step under another name, and what lies across phases that
    follow one another. It runs beside them, or its times were made up."""
    phases, steps = tables["phases"], tables.get("steps")
    found = contained(phases, steps)
    if found is None:
        return []
    names = phases.strings("phase")
    tiles = ~names.equals(*found.totals, *found.inside)
    across = _across(phases, tiles, [one for one in found.inside if not loads(one)])
    phases = phases.with_column("start_ns", _one_by_one(phases, tiles))
    tables["phases"] = phases.take(~names.equals(*found.whole, *across))
    if found.step is not None:
        tables["steps"] = _times_of(phases, found.step, "start_ns", "duration_ns")
    return _skipped(found.whole) + _skipped(across, "it lies across phases that follow one another")


def _one_by_one(phases: Table, tiles: Mask) -> Ints:
    """The starts, those of tiles not before the one before has ended: loggers round times, and what
    is shorter than that would seem to lie in what follows."""
    start, lasted = phases.ints("start_ns").copy(), _lasted(phases)
    cell = numbered(phases.ints("rank"), phases.ints("step"))
    order = np.flatnonzero(tiles)
    order = order[np.lexsort((lasted[order], start[order], cell[order]))]
    cell, begin, lasted = cell[order], start[order], lasted[order]
    first = np.searchsorted(cell, cell)
    before = np.cumsum(lasted) - lasted
    before -= before[first]
    ahead = begin - begin[first] - before
    apart = cell * (int(np.ptp(ahead)) + 1)
    start[order] = np.maximum.accumulate(ahead + apart) - apart + before + begin[first]
    return start


def _across(phases: Table, tiles: Mask, names: Sequence[str]) -> list[str]:
    """Those of the phases that mostly lie neither in a row of the tiles nor between these."""
    row, start = numbered(phases.ints("rank")), phases.ints("start_ns")
    lasted, first = _lasted(phases), int(start.min())
    span = int((start + lasted).max()) - first + 1
    if span * (int(row.max()) + 1) >= np.iinfo(np.int64).max:
        return []
    begin = row * span + start - first
    order = np.flatnonzero(tiles)[np.argsort(begin[tiles], kind="stable")]
    covered = union(begin[order], begin[order] + lasted[order])
    found = []
    for name in names:
        own = np.flatnonzero(phases.strings("phase").equals(name))
        middle = lasted[own] // 10  # what sticks out by a tenth was rounded
        at = np.searchsorted(begin[order], begin[own] + middle, side="right") - 1
        holder = order[at.clip(0)]
        inside = (at >= 0) & (begin[own] + lasted[own] - middle <= begin[holder] + lasted[holder])
        beside = covered.within(begin[own], begin[own] + lasted[own]) <= 2 * middle
        found += [name] if own.size and (inside | beside).mean() < MOSTLY else []
    return found


def _first_phases(tables: dict[str, Table], untimed: list[str]) -> _StepStarts | None:
    """Steps that begin with their first phase; None if it is not known when that was."""
    phases = tables.get("phases")
    if phases is None or "phases" in untimed or not phases.has("rank", "step", "start_ns"):
        return None
    phases = phases.take(phases.ints("start_ns").argsort(kind="stable"))
    _, first = np.unique(numbered(phases.ints("rank"), phases.ints("step")), return_index=True)
    first_of = phases.take(first)
    return _StepStarts(*(first_of.ints(name) for name in ("rank", "step", "start_ns")))


def _is_untimed(table: Table) -> bool:
    if not table.has("rank", "step", "duration_ns"):
        return False
    return not table.has("start_ns") or bool((table.ints("start_ns") == NULL).all())


def _earliest(window: Window) -> int:
    """The first time in any table that has times."""
    known = [EARLIEST_NS]
    for name, column in TIMES.items():
        table = window.table(name)
        if table is not None and table.has(column):
            known += _first_of(table.ints(column))
    return max(known[0], min(known[1:], default=known[0]))


def _first_of(times: Ints) -> list[int]:
    """The first time above 0, if there is any."""
    if times.min() <= 0:
        times = times[times > 0]
    return [int(times.min())] if times.size else []


def _steps_of(tables: dict[str, Table]) -> _StepStarts | None:
    """The starts of recorded steps, by rank and step; None without steps."""
    steps = tables.get("steps")
    if steps is None or not len(steps) or not steps.has("rank", "step", "start_ns"):
        return None
    return _StepStarts(steps.ints("rank"), steps.ints("step"), steps.ints("start_ns"))


class _StepStarts:
    """When each rank began each step."""

    def __init__(self, rank: Ints, step: Ints, start: Ints) -> None:
        self._rank, self._step, self._start = rank, step, start

    def of(self, rank: Ints, step: Ints) -> Ints:
        """The starts for these ranks and steps; NULL where the step was not recorded."""
        own = len(self._rank)
        key = numbered(np.append(self._rank, rank), np.append(self._step, step))
        start = np.full(int(key.max(initial=-1)) + 1, NULL)
        start[key[:own]] = self._start
        return start[key[own:]]


def _after_the_longest(steps: Table, first_ns: int, called: Table | None) -> _StepStarts:
    """All ranks begin a step when the last of them finished the one before, or if they called
    operators in it, with the first call."""
    numbers, column = np.unique(steps.ints("step"), return_inverse=True)
    longest = np.zeros(len(numbers), np.int64)
    np.maximum.at(longest, column, _lasted(steps))
    before = np.cumsum(longest) - longest
    begins = before + np.maximum.accumulate(_first_calls(called, numbers, first_ns) - before)
    return _StepStarts(steps.ints("rank"), steps.ints("step"), begins[column])


def _first_calls(called: Table | None, steps: Ints, first_ns: int) -> Ints:
    """When the first operator of each step was called; `first_ns` where that is unknown."""
    unknown = np.full(len(steps), first_ns)
    if called is None or not called.has("step", "enqueue_ns"):
        return unknown
    number, call = called.ints("step"), called.ints("enqueue_ns")
    at = np.searchsorted(steps, number).clip(max=len(steps) - 1)
    known = (call > 0) & (call < LATEST_NS) & (steps[at] == number)
    first = np.full(len(steps), LATEST_NS)
    np.minimum.at(first, at[known], call[known])
    return np.where(first == LATEST_NS, unknown, first)


def _sums(phases: Table) -> Table:
    """Steps that last as long as their phases together."""
    step = numbered(phases.ints("rank"), phases.ints("step"))
    _, first = np.unique(step, return_index=True)
    lasted = np.zeros(len(first), np.int64)
    np.add.at(lasted, step, _lasted(phases))
    chosen = phases.take(first)
    return Table({name: chosen.ints(name) for name in ("rank", "step")} | {"duration_ns": lasted})


def _starts(table: Table, begins: _StepStarts) -> Ints:
    """Each row after those of its rank and step that precede it."""
    rank, step = table.ints("rank"), table.ints("step")
    key, lasted = numbered(rank, step), _lasted(table)
    order = np.argsort(key, kind="stable")
    before = np.cumsum(lasted[order]) - lasted[order]
    first = np.flatnonzero(np.diff(key[order], prepend=-1) != 0)
    before -= np.repeat(before[first], np.diff(np.append(first, len(before))))
    after = np.empty_like(before)
    after[order] = before
    begin = begins.of(rank, step)
    return np.where(begin == NULL, NULL, begin + after)


def _lasted(table: Table) -> Ints:
    """The durations; 0 for rows that are impossible or unknown."""
    lasted = table.ints("duration_ns")
    return np.where((lasted >= 0) & (lasted < LONGEST_NS), lasted, 0)
