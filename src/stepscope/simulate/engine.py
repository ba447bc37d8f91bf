"""Computes when everything in one step happens.

- The host issues operations in order, which takes time; it runs ahead of the device until it must
  wait (`sync`).
- An operation starts when it has been issued, its stream is free, and its dependencies are done.
- Local work ends after its duration. A collective, or a send and its receive, ends for all members
  at once: when the last member has started, plus the duration of the transfer.
- An operation that never ends (`NEVER`) blocks everything that depends on it, and nothing else.

All ranks of a stage are one row of numbers. Times are integer nanoseconds since the job began, so
that a slow but simple reference simulation can agree exactly. Several steps can be computed side by
side: each table then has an axis for them before the axis of the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.simulate.plan import Meeting, Member, Plan
from stepscope.simulate.program import HOST
from stepscope.window import Ints

NEVER = 1 << 60
"""Later than any time of a job (36 years); a few of them can be added without overflow."""


@dataclass(frozen=True)
class Grid:
    """The grid of the ranks of one stage, and the axes of it along which each group extends."""

    shape: tuple[int, ...]
    over: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Costs:
    """The duration of everything: `[slot, stage, (step,) rank within the stage]` in ns."""

    lasting: Ints
    """Work on the device; for a communication operator the transfer, equal for its members."""
    issuing: Ints
    """Host time until the operation is issued, including the host's own work and stalls."""

    @property
    def endless(self) -> bool:
        """Whether any operation never ends."""
        return bool((self.lasting >= NEVER).any() or (self.issuing >= NEVER).any())


@dataclass(frozen=True)
class Times:
    """When everything happened: `[slot, stage, (step,) rank within the stage]`, or NEVER."""

    issued: Ints
    begin: Ints
    end: Ints
    done: Ints
    """When each host had finished the step: `[stage, (step,) rank within the stage]`."""

    def of_step(self, at: int, since_ns: int) -> Times:
        """The times of one of several steps, shifted by when that step began."""
        tables = (self.issued[:, :, at], self.begin[:, :, at], self.end[:, :, at], self.done[:, at])
        if not since_ns:
            return Times(*tables)
        return Times(*(np.minimum(table + since_ns, NEVER) for table in tables))


def play(plan: Plan, grid: Grid, costs: Costs, start: Ints) -> Times:
    """Computes steps whose hosts begin at `start` (`[stage, (step,) rank within the stage]`).

    Several steps are independent of one another.
    """
    return _Play(plan, grid, costs, start).run()


class _Play:
    """One computation. Rows of numbers are looked up once per slot and stage: there are many."""

    def __init__(self, plan: Plan, grid: Grid, costs: Costs, start: Ints) -> None:
        self.plan = plan
        self.shape = (*start.shape[1:-1], *grid.shape)
        """Shape of a row with the ranks spread out on their grid."""
        self.over = {group: tuple(axis - len(grid.shape) for axis in over)
                     for group, over in grid.over.items()}  # fmt: skip
        self.all_issued = _issue(plan, costs.issuing, start)
        self.all_begin = np.full_like(self.all_issued, NEVER)
        self.all_end = np.full_like(self.all_issued, NEVER)
        self.issued, self.begin, self.end, self.lasting = (
            list(table.reshape(-1, *table.shape[2:]))
            for table in (self.all_issued, self.all_begin, self.all_end, costs.lasting)
        )
        self.late = [[np.zeros_like(one)] for one in start]
        """Per stage and after each wait: how much later than `issued` its hosts are."""
        self.free: list[dict[str, Ints]] = [{} for _ in start]
        """Per stage and stream: when the stream is free."""
        self.stuck = costs.endless

    def run(self) -> Times:
        for meeting in self.plan.meetings:
            for member in meeting.members:
                self._begin(member)
            self._finish(meeting)
        if self.stuck:
            np.minimum(self.all_issued, NEVER, out=self.all_issued)
        return Times(self.all_issued, self.all_begin, self.all_end, self._done())

    def _begin(self, member: Member) -> None:
        row, free = member.row, self.free[member.stage]
        begin, issued = self.begin[row], self.issued[row]
        if member.waits_before:
            np.add(issued, self.late[member.stage][member.waits_before], out=issued)
        if member.stream in free:
            np.maximum(issued, free[member.stream], out=begin)
        else:
            begin[:] = issued
        for other in member.after:
            np.maximum(begin, self.end[other], out=begin)
        if self.stuck:
            np.minimum(begin, NEVER, out=begin)
        free[member.stream] = self.end[row]

    def _finish(self, meeting: Meeting) -> None:
        members = meeting.members
        if meeting.op.stream == HOST:
            self._wait(members[0], meeting.op.kind == "sync")
        elif len(members) > 1 or meeting.op.group == "world":
            self._end_together(meeting)
        else:
            self._end(members[0].row, self.over.get(meeting.op.group))
        if self.stuck:
            for one in members:
                np.minimum(self.end[one.row], NEVER, out=self.end[one.row])

    def _end(self, row: int, over: tuple[int, ...] | None) -> None:
        """Work ends after its duration; a collective within a stage ends at once per group."""
        begin, end, lasting = self.begin[row], self.end[row], self.lasting[row]
        if over is None:
            np.add(begin, lasting, out=end)
            return
        last = begin.reshape(self.shape).max(axis=over, keepdims=True)
        np.add(last, lasting.reshape(self.shape), out=end.reshape(self.shape))

    def _end_together(self, meeting: Meeting) -> None:
        """Sends and receives end rank by rank; other collectives across stages for all ranks."""
        last = np.maximum.reduce([self.begin[one.row] for one in meeting.members])
        if meeting.op.group == "world":
            last = last.max(axis=-1, keepdims=True)
        lasting = self.lasting[meeting.members[0].row]
        for one in meeting.members:
            np.add(last, lasting, out=self.end[one.row])

    def _wait(self, member: Member, waits: bool) -> None:
        """The host waits until its dependencies are done."""
        begin = self.begin[member.row]
        self.end[member.row][:] = begin
        if waits:
            late = self.late[member.stage]
            late.append(late[-1] + (begin - self.issued[member.row]))

    def _done(self) -> Ints:
        """A host has finished when the last operation of its list has."""
        last = [order[-1] for order in self.plan.program.host_order]
        return np.stack([self.all_end[slot, stage] for stage, slot in enumerate(last)])


def _issue(plan: Plan, issuing: Ints, start: Ints) -> Ints:
    """When each operation would be issued if hosts never waited."""
    issued = np.full_like(issuing, NEVER)
    for stage, slots in enumerate(plan.program.host_order):
        issued[slots, stage] = start[stage] + np.cumsum(issuing[slots, stage], axis=0)
    return issued
