"""Finds the process group of communicators that neither their members nor a name tell apart.

Torch up to 2.13 gives NCCL no name of a process group, and groups often have the same members:
Megatron's for data and for context parallelism, or one that a script makes to average its losses.
For single sends within a group, torch makes communicators of two ranks.

Torch calls NCCL before a call returns. So an operator belongs to the last call before it, among
those of all groups that may be meant, if that fits. Each operator votes for the group of that call.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from stepscope.processor.operators.calls import BECOMES, Call
from stepscope.processor.operators.communicators import PAIR, Members, Place, parse
from stepscope.processor.operators.launches import Operator
from stepscope.trace.names import NO_PEER
from stepscope.wire.frames import GroupInfo
from stepscope.wire.records import UNKNOWN

MAJORITY = 0.75
"""Of the votes. Only threads that call operators at the same moment vote wrongly: our choice."""
LONGEST_BATCH = 256
"""Calls that a script groups before NCCL gets their operators: a send and a receive for each of
128 peers."""


@dataclass
class Places:
    """The places of a process's communicators, as far as its operators have shown them."""

    votes: dict[str, Counter[Place]]

    @staticmethod
    def unknown() -> Places:
        return Places(defaultdict(Counter))

    def of(self, communicator: str) -> Place | None:
        """Where this communicator belongs; None if the votes are divided, or if there are none."""
        votes = self.votes.get(communicator)
        if not votes:
            return None
        place, most = votes.most_common(1)[0]
        return place if most >= MAJORITY * votes.total() else None

    def learn(
        self, operators: Iterable[Operator], calls: Mapping[str, Sequence[Call]], members: Members
    ) -> None:
        """Takes the votes of operators whose communicators are ambiguous.

        Args:
            calls: of each process group, those that may have led to these operators.
        """
        possible: dict[str, dict[str, GroupInfo]] = {}
        merged: dict[tuple[str, ...], _Calls] = {}
        for op in operators:
            if op.communicator not in possible:
                found = members.possible(op.communicator)
                possible[op.communicator] = {group.id: group for group in found}
            groups = possible[op.communicator]
            if not groups:
                continue
            some = tuple(groups)
            if some not in merged:
                merged[some] = _Calls.of(calls, some)
            call = merged[some].last_before(op)
            if call is not None:
                place = _place(op, call, groups[call.group], members.rank)
                if place is not None:
                    self.votes[op.communicator][place] += 1


@dataclass(frozen=True)
class _Calls:
    """The calls of some groups, in order of time."""

    calls: Sequence[Call]
    times_ns: Sequence[int]

    @staticmethod
    def of(calls: Mapping[str, Sequence[Call]], groups: Iterable[str]) -> _Calls:
        some = [call for group in groups for call in calls.get(group, ())]
        some.sort(key=attrgetter("enqueue_ns"))
        return _Calls(some, [call.enqueue_ns for call in some])

    def last_before(self, op: Operator) -> Call | None:
        """The call that an operator may come from: the last one before it or, in a batch of one
        group, one just before that."""
        last = bisect_right(self.times_ns, op.enqueue_ns) - 1
        for at in range(last, max(last - LONGEST_BATCH, -1), -1):
            if self.calls[at].group != self.calls[last].group:
                return None
            if _fits(self.calls[at], op):
                return self.calls[at]
        return None


def _fits(call: Call, op: Operator) -> bool:
    if op.op in BECOMES.get(call.op, ()):
        return True
    same = op.op == call.op and (op.peer == NO_PEER) == (call.peer == NO_PEER)
    return same and (UNKNOWN in (op.size, call.size) or op.size == call.size)


def _place(op: Operator, call: Call, group: GroupInfo, rank: int) -> Place | None:
    one = parse(op.communicator)
    if one is None or one.size == len(group.ranks):
        return Place(group.id, group.ranks)
    if one.size != PAIR or call.peer not in group.ranks:
        return None
    pair = tuple(sorted((rank, call.peer), key=group.ranks.index))
    return Place(group.id, pair) if pair[one.rank] == rank else None
