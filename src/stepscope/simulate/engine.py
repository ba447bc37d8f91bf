"""When everything in one step happens: the physics.

- The host issues operations in order, each taking it some time; it runs ahead of the device until
  it must wait (`sync`).
- An operation begins when it was issued, its stream is free, and what it waits for is done.
- Work ends when it has lasted. A collective, or a send and its receive, ends for all members at
  once: when the last has begun, plus the transfer.
- What never ends (`NEVER`) holds back all that waits for it, and nothing else.

All ranks of a stage are one row of numbers; times are integer nanoseconds since the job began, so
that a slow and obvious simulation can agree exactly. Several steps may be played side by side: then
each table has an axis for them before that of the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.simulate.plan import Meeting, Member, Plan
from stepscope.simulate.program import HOST
from stepscope.window import Ints

NEVER = 1 << 60
"""Later than any moment of a job: thirty-six years. A few of them add up without overflow."""


@dataclass(frozen=True)
class Grid:
    """How the ranks of one stage lie in a grid, and over which of its axes each group extends."""

    shape: tuple[int, ...]
    over: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Costs:
    """How long everything lasts, each `[slot, stage, (step,) rank within the stage]` in ns."""

    lasting: Ints
    """Work on the device; the transfer of a communication operator, equal for its members."""
    issuing: Ints
    """What the host does until the operation is issued, its own work and stalls included."""

    @property
    def endless(self) -> bool:
        """Whether something never ends."""
        return bool((self.lasting >= NEVER).any() or (self.issuing >= NEVER).any())


@dataclass(frozen=True)
class Times:
    """What happened, each `[slot, stage, (step,) rank within the stage]`; NEVER: it did not."""

    issued: Ints
    begin: Ints
    end: Ints
    done: Ints
    """When each host was done with the step: `[stage, (step,) rank within the stage]`."""

    def of_step(self, at: int, since_ns: int) -> Times:
        """One of several steps, which began so much later."""
        tables = (self.issued[:, :, at], self.begin[:, :, at], self.end[:, :, at], self.done[:, at])
        if not since_ns:
            return Times(*tables)
        return Times(*(np.minimum(table + since_ns, NEVER) for table in tables))


def play(plan: Plan, grid: Grid, costs: Costs, start: Ints) -> Times:
    """A step of a job whose hosts begin at `start` (`[stage, (step,) rank within the stage]`).

    Of several steps none knows of another.
    """
    return _Play(plan, grid, costs, start).run()


class _Play:
    """One play. Rows of numbers, one per slot and stage, are looked up once: they are many."""

    def __init__(self, plan: Plan, grid: Grid, costs: Costs, start: Ints) -> None:
        self.plan = plan
        self.shape = (*start.shape[1:-1], *grid.shape)
        """Of a row, where the ranks are spread out on their grid."""
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
        """Per stage how much later than `issued` says its hosts are, after each of their waits."""
        self.free: list[dict[str, Ints]] = [{} for _ in start]
        """Per stage and stream when it is free."""
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
        """Work lasts; a collective of some of this stage's ranks ends for each group at once."""
        begin, end, lasting = self.begin[row], self.end[row], self.lasting[row]
        if over is None:
            np.add(begin, lasting, out=end)
            return
        last = begin.reshape(self.shape).max(axis=over, keepdims=True)
        np.add(last, lasting.reshape(self.shape), out=end.reshape(self.shape))

    def _end_together(self, meeting: Meeting) -> None:
        """Rank by rank between stages, as the send says; for all ranks of the world at once."""
        last = np.maximum.reduce([self.begin[one.row] for one in meeting.members])
        if meeting.op.group == "world":
            last = last.max(axis=-1, keepdims=True)
        lasting = self.lasting[meeting.members[0].row]
        for one in meeting.members:
            np.add(last, lasting, out=self.end[one.row])

    def _wait(self, member: Member, waits: bool) -> None:
        """The host stands still until what it waits for is done."""
        begin = self.begin[member.row]
        self.end[member.row][:] = begin
        if waits:
            late = self.late[member.stage]
            late.append(late[-1] + (begin - self.issued[member.row]))

    def _done(self) -> Ints:
        """Each host is done when the last operation of its list is."""
        last = [order[-1] for order in self.plan.program.host_order]
        return np.stack([self.all_end[slot, stage] for stage, slot in enumerate(last)])


def _issue(plan: Plan, issuing: Ints, start: Ints) -> Ints:
    """When each operation is issued by hosts that never wait."""
    issued = np.full_like(issuing, NEVER)
    for stage, slots in enumerate(plan.program.host_order):
        issued[slots, stage] = start[stage] + np.cumsum(issuing[slots, stage], axis=0)
    return issued
