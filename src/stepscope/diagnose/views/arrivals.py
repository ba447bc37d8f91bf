"""Arrival lag: all ranks leave a collective together, and the culprit arrives last.

Fault: a rank that makes the others of its groups wait.
Papers: Holmes (Yao et al., Holmes: localizing irregularities in LLM training, 2025) and VenusTrace
(Jiao et al., 2025), section 4, look for the longest operator. Here and in blame rule 2 the last
arrival counts, because it has the *shortest* operator (algorithm notes, sections 3 and 4).
`max(D) - D` there is `last arrival - own arrival` here.
The waiting that one rank alone causes is the last arrival less the second last.
Cost: one sort of `comm_ops`.
Cannot see: whether a rank is late by itself or because of an earlier operator (own time shows
that), and delays between hosts whose clocks could not be aligned.

Where hosts call collectives ahead of their devices (`_calls_ahead`), a call is no arrival. A host
that runs ahead calls an operator while its device still computes what the operator sends. Whose
call is last then says which host is behind, and nothing of which device is late.
Cost: two sorts of rows by rank and step. Cannot see: anything where phases do not say whether they
may contain waiting, or where the operator's own start was recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepscope.diagnose.numeric import stats
from stepscope.diagnose.prepare.align import IMPOSSIBLE_NS
from stepscope.diagnose.prepare.matching import SYNCHRONIZING, Matched, arrivals, match
from stepscope.diagnose.views.awaited import CLOSE_NS
from stepscope.diagnose.views.timeline import Timeline
from stepscope.trace import BACKWARD
from stepscope.window import NULL, Floats, Ints, Mask, Strings, Table, Window, stable_order

LATEST = np.iinfo(np.int64).max
"""Stands for an unknown end."""
MOSTLY = 0.5
"""Part of the ranks' steps in which the last call comes before the data is there. Our choice."""


@dataclass(frozen=True)
class Arrivals:
    """Matched collectives, one entry per operator: its last arrival and the waiting that this alone
    caused."""

    step: Ints
    last_rank: Ints
    alone_ns: Ints
    """Last arrival less the second last."""
    transfer_ns: Floats
    """First end less last arrival: the data transfer; NaN if an end is unknown."""
    rows: Ints
    """The rank of each arrival as a row of the grid, operator by operator."""
    arrive_ns: Ints
    begins: Ints
    group: Strings
    op: Strings

    @property
    def _members(self) -> Ints:
        """How many arrivals of each operator were recorded."""
        return np.diff(self.begins, append=self.arrive_ns.size)

    @cached_property
    def last_ns(self) -> Ints:
        """The last arrival at each operator."""
        return np.maximum.reduceat(self.arrive_ns, self.begins)

    @property
    def spread_ns(self) -> Ints:
        """By how much the last arrival at each operator comes after the first one."""
        if not self.begins.size:
            return self.begins
        return np.asarray(self.last_ns - np.minimum.reduceat(self.arrive_ns, self.begins))

    def waited_apart_ns(self, ranks: int, but_for: int) -> Floats:
        """The waiting of each rank for a last arrival other than row `but_for`, summed over all
        operators without all ranks: those leave together what all wait for, and nobody is later
        than others by it."""
        latest, members = self.last_ns, self._members
        counts = np.repeat((members < ranks) & (self.last_rank != but_for), members)
        wait = np.repeat(latest, members) - self.arrive_ns
        return stats.sums(self.rows, np.where(counts, wait, 0), ranks)

    def alone_in(self, operators: Ints, columns: int) -> Floats:
        """For how long, in each step, others waited for the last rank alone in these operators."""
        operators = operators[self.step[operators] >= 0]
        return self._alone(operators, self.step[operators], columns)

    def alone_of(self, chosen: Mask, ranks: int, columns: int) -> Floats:
        """For how long others waited for each rank alone in these operators, `[rank, step]`."""
        cell = self.last_rank[chosen] * columns + self.step[chosen]
        return self._alone(chosen, cell, ranks * columns).reshape(ranks, columns)

    def most_alone_of(self, chosen: Mask, ranks: int, columns: int) -> Floats:
        """The same of the operator of each step at which it was longest."""
        most = np.zeros((ranks, columns))
        np.maximum.at(most, (self.last_rank[chosen], self.step[chosen]), self.alone_ns[chosen])
        return most

    def lag_of(self, culprits: Mask, columns: int) -> Floats:
        """How long others waited in each step for the last culprit after all others had arrived."""
        step, lag = self._lags(culprits)
        theirs = self._latest(culprits)[self._both(culprits)]
        return _waited(step, theirs - lag, theirs, columns)

    def knows(self, culprits: Mask, columns: int) -> Mask:
        """Steps with an operator of which arrivals of culprits and of others were recorded."""
        known = np.zeros(columns, np.bool_)
        known[self._lags(culprits)[0]] = True
        return known

    def most_lag_of(self, culprits: Mask, columns: int) -> Floats:
        """The same of the operator of each step for which they were latest."""
        step, lag = self._lags(culprits)
        most = np.zeros(columns)
        np.maximum.at(most, step, lag)
        return most

    def made_wait(self, unit: Ints, clock: Ints, chosen: Mask, columns: int) -> Floats:
        """`[unit, step]`: the longest time for which the ranks of one unit alone made others wait.

        Args:
            unit: by row, the number of the unit it belongs to.
            clock: likewise, of its clock; only ranks with one clock are compared.
            chosen: the operators that count.
        """
        longest = np.zeros((int(unit.max()) + 1, columns))
        counts = np.repeat(chosen, self._members)
        if not counts.any():
            return longest
        operator = np.repeat(np.arange(self.begins.size), self._members)[counts]
        rows, times = self.rows[counts], self.arrive_ns[counts]
        part = operator * (int(clock.max()) + 1) + clock[rows]
        order = stable_order(part)
        rows, times, part, operator = (one[order] for one in (rows, times, part, operator))
        begins = np.flatnonzero(np.diff(part, prepend=-1))
        number = np.repeat(np.arange(begins.size), np.diff(begins, append=part.size))
        late = unit[rows[_latest_of(times, begins, number)]]
        others = np.where(unit[rows] == late[number], NULL, times)
        before, last = (np.maximum.reduceat(each, begins) for each in (others, times))
        known = before > NULL
        place = late[known], self.step[operator[begins]][known]
        np.maximum.at(longest, place, (last - before)[known])
        return longest

    def _alone(self, operators: Ints | Mask, cell: Ints, cells: int) -> Floats:
        """For how long, in each cell, others waited for the last rank alone in these operators."""
        last = self.last_ns[operators]
        return _waited(cell, last - self.alone_ns[operators], last, cells)

    def _lags(self, culprits: Mask) -> tuple[Ints, Ints]:
        """The step of each operator with both, and by how much the last culprit came later."""
        both = self._both(culprits)
        lag = self._latest(culprits)[both] - self._latest(~culprits)[both]
        return self.step[both], np.maximum(lag, 0)

    def _both(self, culprits: Mask) -> Mask:
        """Operators of a step of which arrivals of culprits and of others were recorded."""
        known = (self._latest(culprits) > NULL) & (self._latest(~culprits) > NULL)
        return np.asarray(known & (self.step >= 0))

    def _latest(self, chosen: Mask) -> Ints:
        values = np.where(chosen[self.rows], self.arrive_ns, NULL)
        return np.maximum.reduceat(values, self.begins) if self.begins.size else values


def _waited(step: Ints, begin: Ints, end: Ints, columns: int) -> Floats:
    """How long ranks waited in each step, by spans from their arrival to the last one.

    Spans that overlap are one lateness, and the longest counts: who calls the next operator before
    the last rank has come to this one did not wait in it, as for the buckets of one pass.
    """
    if not step.size:
        return np.zeros(columns)
    order = np.lexsort((begin, step))
    step, begin, end = step[order], begin[order], end[order]
    fresh = np.append(True, np.diff(step) != 0)
    number = np.cumsum(fresh)
    begin, end = (times - begin[fresh][number - 1] for times in (begin, end))
    apart = number * int(end.max() + 1)  # so that no step reaches into the next one
    reached = np.maximum.accumulate(end + apart)[:-1] - apart[1:]
    first = np.flatnonzero(fresh | np.append(True, begin[1:] >= reached))
    return stats.sums(step[first], np.maximum.reduceat(end - begin, first), columns)


def collect_arrivals(window: Window, line: Timeline) -> Arrivals | None:
    """Arrivals in all collectives with at least two recorded members; None if there are none, or if
    hosts call them before their data is there."""
    comm = window.table("comm_ops")
    if comm is None or _calls_ahead(window, line, comm):
        return None
    together = comm.strings("op").equals(*SYNCHRONIZING) & (line.rows(comm.ints("rank")) >= 0)
    matched = match(comm.take(together))
    shared = (np.diff(matched.bounds) > 1) & ~_impossible(matched)
    return _gather(matched, shared, line) if shared.any() else None


def _impossible(matched: Matched) -> Mask:
    """Operators that one member entered after another had left: their clocks are not aligned."""
    table, order, begins = matched.table, matched.order, matched.bounds[:-1]
    if not order.size or not table.has("end_ns"):
        return np.zeros(begins.size, np.bool_)
    end = np.where(table.ints("end_ns") == NULL, LATEST, table.ints("end_ns"))[order]
    first, last = (
        np.minimum.reduceat(end, begins),
        np.maximum.reduceat(arrivals(table)[order], begins),
    )
    known: Mask = first != LATEST
    return known & np.asarray(last - np.where(known, first, last) > IMPOSSIBLE_NS)


def _gather(matched: Matched, shared: Mask, line: Timeline) -> Arrivals:
    table, order = matched.table, matched.order
    length = np.diff(matched.bounds)
    order = order[np.repeat(shared, length)]
    length = length[shared]
    begins = np.concatenate(([0], np.cumsum(length)[:-1]))
    number = np.repeat(np.arange(length.size), length)
    rows, times = line.rows(table.ints("rank"))[order], arrivals(table)[order]
    last = _latest_of(times, begins, number)
    before = np.maximum.reduceat(_without(times, last), begins)
    return Arrivals(
        step=line.columns(table.ints("step")[order[last]])
        if table.has("step") else np.full(last.size, -1),
        last_rank=rows[last],
        alone_ns=times[last] - before,
        transfer_ns=_transfer(table.ints("end_ns")[order], begins, times[last])
        if table.has("end_ns") else np.full(last.size, np.nan),
        rows=rows,
        arrive_ns=times,
        begins=begins,
        group=table.strings("group").take(order[last]),
        op=table.strings("op").take(order[last]),
    )  # fmt: skip


def _latest_of(times: Ints, begins: Ints, number: Ints) -> Ints:
    """The row of the last arrival of each operator; the last row if several arrived at once."""
    latest = np.flatnonzero(times == np.maximum.reduceat(times, begins)[number])
    last = np.empty_like(begins)
    last[number[latest]] = latest  # the last of several values for one index is kept
    return last


def _without(times: Ints, rows: Ints) -> Ints:
    others = times.copy()
    others[rows] = NULL
    return others


def _transfer(end: Ints, begins: Ints, last_arrival: Ints) -> Floats:
    """First end less last arrival, the time of the data transfer, if every end is known."""
    known = np.logical_and.reduceat(end != NULL, begins)
    first = np.minimum.reduceat(end, begins)
    lasted = np.where(known, first, 0) - np.where(known, last_arrival, 0)
    return np.where(known, np.maximum(lasted, 0), np.nan)


def _calls_ahead(window: Window, line: Timeline, comm: Table) -> bool:
    """Whether the last collective of most steps is called before the backward pass has ended.

    All that a step computes is there for its last collective. Only passes of which the waiting is
    known count, and without it, as if all of it came last: one that waits for its gradients ends
    after their exchange.
    """
    phases = window.table("phases")
    if phases is None or not phases.has("waits") or comm.knows("start_ns"):
        return False
    passes = phases.take(phases.strings("phase").equals(BACKWARD))
    waited = np.where(passes.mask("waits"), NULL, 0)
    if passes.has("wait_ns"):
        waited = np.where(passes.ints("wait_ns") == NULL, waited, passes.ints("wait_ns"))
    passes, waited = passes.take(waited != NULL), waited[waited != NULL]
    end = passes.ints("start_ns") + passes.ints("duration_ns") - waited
    calls = comm.take(comm.strings("op").equals(*SYNCHRONIZING))
    done = _latest(line, passes, end)
    called = _latest(line, calls, calls.ints("enqueue_ns"))
    known = (done != NULL) & (called != NULL)
    return bool(known.any() and (called < done - CLOSE_NS)[known].mean() > MOSTLY)


def _latest(line: Timeline, table: Table, time_ns: Ints) -> Ints:
    """The latest time of each rank and step, as one row; NULL where there is none."""
    cell = line.cells(table)
    known = (cell >= 0) & (time_ns != NULL)
    found = np.full(len(line.ranks) * len(line.steps), NULL)
    np.maximum.at(found, cell[known], time_ns[known])
    return found
