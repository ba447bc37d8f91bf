"""When everything in one step happens: the physics.

- The host issues operations in order, each taking it some time; it runs ahead of the device until
  it must wait (`sync`).
- An operation begins when it was issued, its stream is free, and what it waits for is done.
- Work ends when it has lasted. A collective, or a send and its receive, ends for all members at
  once: when the last has begun, plus the transfer.
- What never ends (`NEVER`) holds back all that waits for it, and nothing else.

All ranks of a stage are one row of numbers; times are integer nanoseconds since the job began, so
that a slow and obvious simulation can agree exactly.
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
    """How long everything lasts in one step, each `[slot, stage, rank within the stage]` in ns."""

    lasting: Ints
    """Work on the device; the transfer of a communication operator, equal for its members."""
    issuing: Ints
    """What the host does until the operation is issued, its own work and stalls included."""


@dataclass(frozen=True)
class Times:
    """What happened, each `[slot, stage, rank within the stage]`; NEVER: it did not."""

    issued: Ints
    begin: Ints
    end: Ints
    done: Ints
    """When each host was done with the step: `[stage, rank within the stage]`."""


def play(plan: Plan, grid: Grid, costs: Costs, start: Ints) -> Times:
    """One step of a job whose hosts begin at `start` (`[stage, rank within the stage]`)."""
    return _Play(plan, grid, costs, start).run()


class _Play:
    def __init__(self, plan: Plan, grid: Grid, costs: Costs, start: Ints) -> None:
        self.plan, self.grid, self.costs = plan, grid, costs
        self.issued = _issue(plan, costs.issuing, start)
        self.begin = np.full_like(self.issued, NEVER)
        self.end = np.full_like(self.issued, NEVER)
        self.late = [[np.zeros_like(one)] for one in start]
        """Per stage how much later than `issued` says its hosts are, after each of their waits."""
        self.free: list[dict[str, Ints]] = [{} for _ in start]
        """Per stage and stream when it is free."""
        self.stuck = bool((costs.lasting >= NEVER).any() or (costs.issuing >= NEVER).any())

    def run(self) -> Times:
        for meeting in self.plan.meetings:
            self._happen(meeting)
        if self.stuck:
            np.minimum(self.issued, NEVER, out=self.issued)
        return Times(self.issued, self.begin, self.end, self._done())

    def _happen(self, meeting: Meeting) -> None:
        for member, after in zip(meeting.members, meeting.after, strict=True):
            self._begin(member, after)
        if meeting.op.stream == HOST:
            self._wait(meeting.members[0])
        elif len(meeting.members) > 1 or meeting.op.group == "world":
            self._end_together(meeting)
        else:
            self._end(meeting.members[0], self.grid.over.get(meeting.op.group))
        for slot, stage in meeting.members:
            if self.stuck:
                np.minimum(self.end[slot, stage], NEVER, out=self.end[slot, stage])
            self.free[stage][self.plan.program.ops[slot].stream] = self.end[slot, stage]

    def _begin(self, member: Member, after: tuple[int, ...]) -> None:
        slot, stage = member
        stream = self.plan.program.ops[slot].stream
        begin = self.begin[slot, stage]
        late = self.late[stage][self.plan.waits_before[member]]
        np.add(self.issued[slot, stage], late, out=begin)
        self.issued[slot, stage] = begin
        if stream in self.free[stage]:
            np.maximum(begin, self.free[stage][stream], out=begin)
        for other in after:
            np.maximum(begin, self.end[other, stage], out=begin)
        if self.stuck:
            np.minimum(begin, NEVER, out=begin)

    def _end(self, member: Member, over: tuple[int, ...] | None) -> None:
        """Work lasts; a collective of some of this stage's ranks ends for each group at once."""
        begin, end, lasting = self.begin[member], self.end[member], self.costs.lasting[member]
        if over is None:
            np.add(begin, lasting, out=end)
            return
        shape = self.grid.shape
        last = begin.reshape(shape).max(axis=over, keepdims=True)
        np.add(last, lasting.reshape(shape), out=end.reshape(shape))

    def _end_together(self, meeting: Meeting) -> None:
        """Rank by rank between stages, as the send says; for all ranks of the world at once."""
        last = np.maximum.reduce([self.begin[member] for member in meeting.members])
        if meeting.op.group == "world":
            last = last.max(keepdims=True)
        for member in meeting.members:
            np.add(last, self.costs.lasting[meeting.members[0]], out=self.end[member])

    def _wait(self, member: Member) -> None:
        """The host stands still until what it waits for is done."""
        slot, stage = member
        self.end[member] = self.begin[member]
        if self.plan.program.ops[slot].kind == "sync":
            late = self.late[stage][-1] + (self.begin[member] - self.issued[member])
            self.late[stage].append(late)

    def _done(self) -> Ints:
        """Each host is done when the last operation of its list is."""
        last = [order[-1] for order in self.plan.program.host_order]
        return np.stack([self.end[slot, stage] for stage, slot in enumerate(last)])


def _issue(plan: Plan, issuing: Ints, start: Ints) -> Ints:
    """When each operation is issued by hosts that never wait."""
    issued = np.full_like(issuing, NEVER)
    for stage, slots in enumerate(plan.program.host_order):
        issued[slots, stage] = start[stage] + np.cumsum(issuing[slots, stage], axis=0)
    return issued
