"""Kernel durations on each rank and in each window, for one kernel on one stream at a time.

    kernel_summaries: modes of a minute  ┐
                                         ├─▶ rows by (lane, rank, window) ─▶ KernelTimes
    kernels: every execution ─▶ quantiles┘

A lane is a kernel on one stream, or on all streams if processes number their streams differently.
Windows are minutes by the clocks of the hosts, or blocks of steps. Warm-up windows are left out if
there are others.
Lossy: from single executions sixteen quantiles are kept; anything rarer than 3 % is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.numeric.mixtures import Mixtures
from stepscope.diagnose.numeric.stats import window_width
from stepscope.diagnose.thresholds import HALF
from stepscope.diagnose.views.timeline import Timeline
from stepscope.window import NULL, Floats, Ints, Mask, Table, Window, numbered, stable_order

QUANTILES = 16
"""Evenly spaced quantiles that are kept of a kernel's executions in a block of steps."""
ALL_STREAMS = -1
_MODE = ("rank", "window_start_ns", "window_ns", "kernel", "stream", "count", "p50_ns", "p99_ns")
_EXECUTION = ("rank", "step", "kernel", "stream", "duration_ns")


@dataclass(frozen=True)
class KernelTimes:
    """One kernel on one stream. Its modes are rows, by rank and then window."""

    kernel: str
    stream: int
    shape: tuple[int, int]
    """Ranks and windows."""
    cell: Ints
    """The cell (rank * windows + window) of each mode, in ascending order."""
    modes: Table
    """`count`, `p50_ns`, `p99_ns`, and `max_ns` if it was recorded."""

    @cached_property
    def count(self) -> Floats:
        """`[rank, window]`: number of executions."""
        return self._spread(np.add.reduceat(self.modes.floats("count"), self._begins), 0.0)

    @cached_property
    def typical_ns(self) -> Floats:
        """`[rank, window]`: weighted mean of the modes' medians; NaN without executions."""
        return self._spread(self._mixtures.typical_ns, np.nan)

    @cached_property
    def mean_ns(self) -> Floats:
        """`[rank, window]`: mean duration including tails; NaN without executions."""
        return self._spread(self._mixtures.mean_ns, np.nan)

    @cached_property
    def longest_ns(self) -> Floats | None:
        """`[rank, window]`: the longest execution; NaN without executions, None if not recorded."""
        if not self.modes.has("max_ns"):
            return None
        longest = np.maximum.reduceat(self.modes.floats("max_ns"), self._begins)
        return self._spread(longest, np.nan)

    def among(self, rows: Ints, window: int) -> tuple[Mixtures, Ints]:
        """The mixtures of those of the given ranks that ran in a window, and these ranks."""
        wanted = np.sort(rows) * self.shape[1] + window
        begin = np.searchsorted(self.cell, wanted)
        stop = np.searchsorted(self.cell, wanted, side="right")
        ran = stop > begin
        begin, length = begin[ran], (stop - begin)[ran]
        if not length.size:
            return Mixtures(*[np.zeros(0)] * 4), np.zeros(0, np.int64)  # type: ignore[arg-type]
        owner = np.repeat(np.arange(length.size), length)
        at = np.arange(owner.size) - np.repeat(np.cumsum(length) - length, length) + begin[owner]
        return _mixtures(owner, self.modes.take(at)), np.sort(rows)[ran]

    @cached_property
    def _begins(self) -> Ints:
        return np.flatnonzero(np.diff(self.cell, prepend=-1))

    @cached_property
    def _mixtures(self) -> Mixtures:
        """The mixtures of all cells that have modes."""
        return _mixtures(np.cumsum(np.diff(self.cell, prepend=self.cell[0]) != 0), self.modes)

    def _spread(self, values: Floats, otherwise: float) -> Floats:
        spread = np.full(self.shape[0] * self.shape[1], otherwise)
        spread[self.cell[self._begins]] = values
        return spread.reshape(self.shape)


def _mixtures(owner: Ints, modes: Table) -> Mixtures:
    return Mixtures.of(owner, *(modes.floats(name) for name in ("count", "p50_ns", "p99_ns")))


@dataclass(frozen=True)
class Recorded:
    """The durations of all kernels of some ranks."""

    begins_ns: Ints
    """Start of each window."""
    length_ns: Floats
    """Approximate length of each window, without steps in it that were not recorded."""
    ranks: int
    _rows: Table
    """`lane`, `row`, `window`, `count`, `p50_ns`, `p99_ns`, sorted by the first three."""
    _lanes: Sequence[tuple[str, int]]
    columns: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """The first column of each window, and the one after the last; empty for minutes."""

    @property
    def windows(self) -> int:
        return len(self.begins_ns)

    def spent_ns(self, wanted: Callable[[str], bool]) -> Floats:
        """`[rank, window]`: typical total time of the wanted kernels; NaN if none ran."""
        chosen = np.array([wanted(kernel) for kernel, _ in self._lanes], np.bool_)
        rows = self._rows.take(chosen[self._rows.ints("lane")])
        cell = rows.ints("row") * self.windows + rows.ints("window")
        spent = rows.floats("count") * rows.floats("p50_ns")
        total = stats.sums(cell, spent, self.ranks * self.windows).reshape(self.ranks, -1)
        return np.where(total > 0, total, np.nan)

    def __iter__(self) -> Iterator[KernelTimes]:
        lane = self._rows.ints("lane")
        bounds = np.searchsorted(lane, np.arange(len(self._lanes) + 1))
        for (kernel, stream), begin, stop in zip(self._lanes, bounds, bounds[1:], strict=False):
            if stop > begin:
                rows = self._rows.take(np.arange(begin, stop))
                cell = rows.ints("row") * self.windows + rows.ints("window")
                shape = (self.ranks, self.windows)
                yield KernelTimes(kernel, stream, shape, cell, rows)


def recorded(window: Window, line: Timeline, only: Ints | None = None) -> Recorded | None:
    """The kernel durations of a job; None if kernels were not recorded.

    Args:
        only: rows of the wanted ranks; all ranks by default.
    """
    for name, columns, read in (("kernel_summaries", _MODE, _of_summaries),
                                ("kernels", _EXECUTION, _of_executions)):  # fmt: skip
        table = window.table(name)
        if table is not None and table.has(*columns):
            row = np.searchsorted(line.ranks, table.ints("rank"))
            known = np.append(line.ranks, -1)[row] == table.ints("rank")
            known &= table.strings("kernel").codes >= 0
            if only is not None:
                known &= np.isin(row, only)
            found = read(table.take(known), line)
            if found is not None:
                return found
    return None


def _of_summaries(table: Table, line: Timeline) -> Recorded | None:
    positive = np.logical_and.reduce([table.ints(name) > 0 for name in (*_MODE[5:], "window_ns")])
    table = table.take(positive & (table.ints("window_start_ns") != NULL))
    if not len(table):
        return None
    length = float(np.median(table.floats("window_ns")))
    begins, number = _minutes(table.ints("window_start_ns"), length)
    first = _warm(begins, line)
    late = number >= first
    table, number, begins = table.take(late), number[late] - first, begins[first:]
    rows = {"window": number, **{name: table.ints(name) for name in ("count", "p50_ns", "p99_ns")}}
    if table.has("max_ns"):
        rows["max_ns"] = np.maximum(table.ints("max_ns"), rows["p99_ns"])  # null: not longer
    return _sorted(table, rows, begins, _lengths(table, number, begins.size), line)


def _lengths(table: Table, number: Ints, windows: int) -> Floats:
    """The largest length that any rank recorded for each window."""
    longest = np.ones(windows)
    np.maximum.at(longest, number, table.floats("window_ns"))
    return longest


def _minutes(start_ns: Ints, length_ns: float) -> tuple[Ints, Ints]:
    """The start of each window, and each row's window. Clocks differ by less than half a window."""
    starts, number = np.unique(start_ns, return_inverse=True)
    fresh = np.diff(starts, prepend=starts[0]) > max(length_ns, 1.0) / 2
    window = np.cumsum(fresh, dtype=np.int64)
    begins = starts[np.flatnonzero(np.diff(window, prepend=-1))]
    return begins, window[number.ravel()]


def _warm(begins_ns: Ints, line: Timeline) -> int:
    """The number of windows with warm-up, but never all of them."""
    after = int(line.begins_ns[line.warm_up]) if len(line.steps) > line.warm_up else None
    warming = 1 if after is None else int((begins_ns < after).sum())
    return min(warming, begins_ns.size - 1)


def _of_executions(table: Table, line: Timeline) -> Recorded | None:
    column = line.columns(table.ints("step"))
    steps = len(line.steps) - line.warm_up
    width = min(window_width(steps), max(steps, 1))
    windows = steps // width
    lead = len(line.steps) - windows * width
    known = (column >= lead) & (table.ints("duration_ns") > 0)
    if windows < 1 or not known.any():
        return None
    table = table.take(known)
    at = lead + width * np.arange(windows + 1)
    lasted = np.where(np.isfinite(line.job_period_ns), line.job_period_ns, line.typical_ns)
    length = np.add.reduceat(lasted, at[:-1])  # begins are further apart where steps are missing
    rows = {"window": (column[known] - lead) // width, "duration_ns": table.ints("duration_ns")}
    whole = _sorted(table, rows, line.begins_ns[at[:-1]], np.maximum(length, 1.0), line)
    return replace(whole, _rows=_quantiles(whole._rows), columns=at)


def _quantiles(rows: Table) -> Table:
    """At most sixteen executions of each cell, which stand for all."""
    names = ("lane", "row", "window")
    edge = np.logical_or.reduce([np.diff(rows.ints(name), prepend=-1) != 0 for name in names])
    begin = np.flatnonzero(edge)
    length = np.diff(np.append(begin, len(rows)))
    kept = np.minimum(length, QUANTILES)
    number = np.arange(int(kept.sum())) - np.repeat(np.cumsum(kept) - kept, kept)
    many, few = np.repeat(length, kept), np.repeat(kept, kept)
    at = np.repeat(begin, kept) + (2 * number + 1) * many // (2 * few)
    taken = rows.take(at)
    columns = {name: taken.ints(name) for name in names}
    lasted = taken.ints("duration_ns")
    return Table({**columns, "count": many / few, "p50_ns": lasted, "p99_ns": lasted})


def _sorted(
    table: Table, rows: dict[str, Ints], begins_ns: Ints, length_ns: Floats, line: Timeline
) -> Recorded:
    row = np.searchsorted(line.ranks, table.ints("rank"))
    lane, lanes = _lanes(table, row)
    size = len(line.ranks) * len(begins_ns)
    key = lane * size + row * len(begins_ns) + rows["window"]
    lasted = rows.get("duration_ns")
    order = stable_order(key) if lasted is None else np.lexsort((lasted, key))
    columns = {"lane": lane, "row": row.astype(np.int64), **rows}
    ordered = Table({name: values[order] for name, values in columns.items()})
    return Recorded(begins_ns, length_ns, len(line.ranks), ordered, lanes)


def _lanes(table: Table, row: Ints) -> tuple[Ints, list[tuple[str, int]]]:
    """The lane of each row, and the kernel and stream of each lane."""
    names = table.strings("kernel")
    kernel, stream = names.codes.astype(np.int64), table.ints("stream")
    apart = _apart(kernel, numbered(kernel, stream), row)
    if apart.any():
        stream = np.where(apart[kernel], ALL_STREAMS, stream)
    lane = numbered(kernel, stream)
    some = np.zeros(int(lane.max()) + 1, np.int64)
    some[lane] = np.arange(lane.size)  # any row of each
    pairs = zip(kernel[some].tolist(), stream[some].tolist(), strict=True)
    return lane, [(names.values[code], number) for code, number in pairs]


def _apart(kernel: Ints, lane: Ints, row: Ints) -> Mask:
    """The codes of kernels that do not run on the same stream on most of their ranks."""
    of_kernel = np.zeros(int(lane.max()) + 1, np.int64)
    of_kernel[lane] = kernel
    most = np.zeros(int(kernel.max()) + 1)
    np.maximum.at(most, of_kernel, _ranks(lane, row))
    return np.asarray(most <= HALF * _ranks(kernel, row))


def _ranks(number: Ints, row: Ints) -> Ints:
    """The number of ranks that have rows with each number."""
    used = np.zeros((int(number.max()) + 1, int(row.max()) + 1), np.bool_)
    used[number, row] = True
    return np.asarray(used.sum(axis=1))
