"""The physics once more, slow and obvious: one event after the other, rank by rank.

Knows nothing of slots, grids or plans: each rank is a host that issues operations and streams that
run them; who meets whom is read off lists of ranks.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stepscope.simulate.cluster import Cluster
from stepscope.simulate.program import Key, Op, Program

Cost = Callable[[Key, int, int], int]
"""Of an operation by key, stage and rank within the stage."""


@dataclass
class Rank:
    """One host thread and its device."""

    stage: int
    within: int
    program: tuple[Op, ...]
    next: int = 0
    queues: dict[str, deque[Op]] = field(default_factory=lambda: defaultdict(deque))
    busy: set[str] = field(default_factory=set)
    issued: dict[Key, int] = field(default_factory=dict)
    begin: dict[Key, int] = field(default_factory=dict)
    end: dict[Key, int] = field(default_factory=dict)
    waits_for: Op | None = None


class Oracle:
    """Plays one step, all hosts beginning at time 0."""

    def __init__(self, program: Program, cluster: Cluster, lasting: Cost, issuing: Cost) -> None:
        self.cluster, self.lasting, self.issuing = cluster, lasting, issuing
        places = (divmod(place, cluster.per_stage) for place in range(cluster.scenario.ranks))
        self.ranks = [Rank(stage, within, program.stages[stage]) for stage, within in places]
        self.groups = {kind: [list(map(int, places)) for places in cluster.members(kind)]
                       for kind in cluster.kinds}  # fmt: skip
        self.events: list[tuple[int, int, Callable[[], None]]] = []
        self.now = 0
        self.count = 0

    def play(self) -> Sequence[Rank]:
        for place in range(len(self.ranks)):
            self._issue_next(place)
        while self.events:
            self.now, _, happen = heapq.heappop(self.events)
            happen()
        return self.ranks

    def _at(self, time: int, happen: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (time, self.count, happen))

    def _issue_next(self, place: int) -> None:
        rank = self.ranks[place]
        if rank.next < len(rank.program):
            op = rank.program[rank.next]
            rank.next += 1
            cost = self.issuing(op.key, rank.stage, rank.within)
            self._at(self.now + cost, lambda: self._issued(place, op))

    def _issued(self, place: int, op: Op) -> None:
        rank = self.ranks[place]
        rank.issued[op.key] = self.now
        if op.kind == "sync":
            rank.waits_for = op
            self._look(place)
            return
        if op.kind == "host":
            rank.begin[op.key] = rank.end[op.key] = self.now
        else:
            rank.queues[op.stream].append(op)
        self._look(place)
        self._issue_next(place)

    def _look(self, place: int) -> None:
        """Begins whatever can begin on this rank now."""
        rank = self.ranks[place]
        waiting = rank.waits_for
        if waiting is not None and all(key in rank.end for key in waiting.after):
            rank.waits_for = None
            rank.begin[waiting.key] = rank.end[waiting.key] = self.now
            self._issue_next(place)
        for stream, queue in rank.queues.items():
            if queue and stream not in rank.busy and all(k in rank.end for k in queue[0].after):
                self._begin(place, queue.popleft())

    def _begin(self, place: int, op: Op) -> None:
        rank = self.ranks[place]
        rank.busy.add(op.stream)
        rank.begin[op.key] = self.now
        members = self._members(place, op)
        if all(key in self.ranks[other].begin for other, key in members):
            sender, key = members[0]
            for other, its_key in members:
                one = self.ranks[other]
                cost = self.lasting(key, self.ranks[sender].stage, self.ranks[sender].within)
                stream = next(op.stream for op in one.program if op.key == its_key)
                self._at(self.now + cost, self._ending(other, its_key, stream))

    def _ending(self, place: int, key: Key, stream: str) -> Callable[[], None]:
        return lambda: self._end(place, key, stream)

    def _end(self, place: int, key: Key, stream: str) -> None:
        self.ranks[place].busy.discard(stream)
        self.ranks[place].end[key] = self.now
        self._look(place)

    def _members(self, place: int, op: Op) -> list[tuple[int, Key]]:
        """Everybody who takes part, of a pair the sender first."""
        if op.kind in ("compute", "copy"):
            return [(place, op.key)]
        if op.partner is not None:
            stage, key = op.partner
            other = place + (stage - self.ranks[place].stage) * self.cluster.per_stage
            pair = [(place, op.key), (other, key)]
            return pair if op.kind == "send" else pair[::-1]
        group = next(places for places in self.groups[op.group] if place in places)
        return [(other, op.key) for other in group]
